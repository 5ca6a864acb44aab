"""The figures of `posbench show`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import refused

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("suffix", "begin"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89P")]
)
def test_formats_and_equal_bytes(suffix: str, begin: bytes, posbench: Command) -> None:
    files = [Path(f"{n}.{suffix}") for n in "ab"]
    for file in files:
        assert posbench("show", "rerope", "--plot", str(file)).code == 0
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(begin) and first == second


def test_a_figure_that_cannot_be_written(posbench: Command) -> None:
    refused(posbench("show", "alibi", "--plot", "a.gif"), "--plot=a.gif", ".png, .svg, .pdf")
    Path("folder.png").mkdir()
    refused(posbench("show", "alibi", "--plot", "folder.png"), "folder.png", "in the way")
    Path("file").touch()
    refused(posbench("show", "alibi", "--plot", "file/a.png"), "file/a.png", "cannot be written")


def test_what_a_figure_of_a_rescaling_has() -> None:
    from posbench.show.facts import described
    from posbench.show.plots import _figure
    from posbench.show.subject import subject

    def titles(name: str, **keys: Any) -> list[str]:
        found = subject(name, keys)
        return [ax.get_title(loc="left") for ax in _figure(found, described(found)).axes]

    assert titles("yarn", factor=4)[:2] == [
        "turns by pair: 21 of 32 turn at least once in L",
        "wavelength by pair",
    ]
    assert titles("rerope")[0] == "relative position, largest 8, L = 16"
    assert titles("alibi") == ["bias by distance (cut at -20)"]
    assert titles("none") == ["weights of the last of 64 tokens"]
