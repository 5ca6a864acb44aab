"""Protocol `repeat`: real text in which the passage that is scored has stood once before.

The windows are those of `same_targets`; the K tokens that are scored are also written over K tokens
d places before, by default over the first, d = T - K + 1:

    T = 12, K = 3:    t1 t2 t3 t4 t5 t6 t7 t8 t9 tA | tB tC tD      same_targets, the control
                      tB tC tD t4 t5 t6 t7 t8 t9 tA | tB tC tD      repeat
                      t1 t2 t3 t4 t5 t6 tB tC tD tA | tB tC tD      repeat, eval.distances=[4]

Same length, same tokens scored, same text before them: the control's loss minus this one is what
the earlier copy is worth, which takes attention that reaches d tokens back. A model that copies
saves nearly all of the loss but for the first token, which nothing announces.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from posbench.data.windows import Window


def repeated(
    windows: Iterable[Window], distance: int | None = None, kept: int = 0
) -> Iterator[Window]:
    """Each window with its labels [S] also `distance` tokens before, or at its start.

    The first `kept` tokens stay: a start token.
    """
    for window in windows:
        inputs, n = window.inputs.copy(), len(window.labels)
        back = distance or len(inputs) - n + 1 - kept
        first = len(inputs) - n + 1 - back
        inputs[first : first + n] = window.labels
        yield replace(window, inputs=inputs, distance=back)
