"""The schemes of the evidence beside each other: what `posbench report` makes, of the main rows.

Main are the experiments that name runs which say what there is to gain (`long` in the plan), plain
and under each rescaling without further options, at the factors 2, 4, 8 and T/L where it takes one,
at L and doublings of it. Rows of every option are in verdicts.csv.
"""

from pathlib import Path

import pandas as pd

from posbench.evaluate import protocols
from posbench.evaluate.plan import PLAIN
from posbench.evaluate.verdicts import longest_within
from posbench.evidence.cells import Evidence
from posbench.files import write_atomic
from posbench.report.compare import COLUMNS, MULTIPLES, compared
from posbench.report.judged import matrices
from posbench.report.markdown import markdown_table
from posbench.report.matrix import matrix_figure
from posbench.report.pooling import Losses, pool
from posbench.report.sections import sections
from posbench.report.tables import title_of

#: test lengths of the table over L
RATIOS = (1, 2, 4, 8, 16)
#: factors of the rescalings that are shown: as given, and T/L anew at each length, an oracle
FACTORS = ("", "2", "4", "8", "auto")


def write(evidence: Evidence, out: Path) -> list[str]:
    """Write within.csv, pairs.csv, verdicts.md and matrix.png/.svg; the names of the files.

    pairs.csv and the matrix compare schemes as they are, at 4 and 16 L. Nothing is written while
    there are no rows.
    """
    parts = [
        evidence.collected(one.name)
        for one in evidence.experiments.values()
        if one.long and evidence.evaluated(one.name)
    ]
    if not parts:
        return []
    rows = pd.concat([one.rows for one in parts], ignore_index=True)
    rows = rows[
        (rows["protocol"] == protocols.SAME_TARGETS)
        & (rows["options"] == "")
        & rows["factor"].isin(FACTORS)
    ]
    losses = Losses(rows, pd.concat([one.blocks for one in parts], ignore_index=True))
    pooled = pool(rows, losses)
    within = longest_within(pooled)
    shown = pooled[pooled["ratio"].isin(RATIOS)]
    # of few seeds many pairs cannot be told apart: schemes alone, rescalings are for the claims
    schemes = shown[shown["rescale"] == PLAIN]
    schemes = schemes[schemes["ratio"].isin(MULTIPLES)]
    files, who, pairs = (
        ["within.csv", "pairs.csv", "verdicts.md"],
        [],
        pd.DataFrame(columns=COLUMNS),
    )
    if len(schemes):
        pairs = compared(schemes, losses)
        found = [(section, matrices(section, pairs)) for section in sections(schemes)]
        who = [f"**{title_of(s, short=False)}**\n\n{matrix}\n" for s, matrix in found if matrix]
        files += ["matrix.png", "matrix.svg"] * matrix_figure(schemes, pairs, out / "matrix")
    for name, table in (("within.csv", within), ("pairs.csv", pairs)):
        text = table.to_csv(index=False, lineterminator="\n", float_format="%.6g")
        write_atomic(out / name, text.encode())
    write_atomic(out / "verdicts.md", "\n".join([markdown_table(shown), *who]).encode())
    return files
