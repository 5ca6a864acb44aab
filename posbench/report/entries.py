"""What a section of the report is made of: entries (a run under one rescaling) and their cells."""

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from posbench.evaluate.verdicts import EXPLODES
from posbench.report.columns import OF_SEEDS, PROBES


def number(value: Any) -> float:
    """A float, with nan for what is missing."""
    return math.nan if value is None or value == "" or pd.isna(value) else float(value)


def rescale_label(rescale: str, factor: str) -> str:
    return f"{rescale}@{factor}" if factor else rescale


@dataclass(frozen=True)
class Cell:
    """One number of the table. Nats per token; nan where the row has none."""

    status: str
    nll: float
    lo: float
    hi: float
    base: float
    crop: float
    ngram: float
    bpb: float
    n_docs: float
    n_targets: float
    n_seeds: float
    accuracy: float = math.nan
    exact: float = math.nan
    #: of a task: accuracy of the worst, middle and best seed, share of seeds that solve the length
    over_seeds: tuple[float, float, float, float] = (math.nan,) * 4
    chance: float = math.nan
    median: float = math.nan
    verdict: str = ""
    #: value, low, high: gain in units of b, share of the headroom, loss of the longer run
    gain_b: tuple[float, float, float] = (math.nan,) * 3
    share: tuple[float, float, float] = (math.nan,) * 3
    long: tuple[float, float, float] = (math.nan,) * 3
    #: loss without an earlier copy less that with it, nats per token
    repeat: tuple[float, float, float] = (math.nan,) * 3
    #: (seed, row) of each seed: see posbench.report.pooling
    members: tuple[tuple[int, dict[str, Any]], ...] = ()

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Cell":
        def three(*names: str) -> tuple[float, float, float]:
            value, low, high = (number(row.get(name)) for name in names)
            return value, low, high

        ok = row["status"] == "ok"
        return cls(
            status=row["status"],
            nll=number(row["nll"]) if ok else math.nan,
            lo=number(row["nll_lo"]),
            hi=number(row["nll_hi"]),
            base=number(row["base_nll"]),
            crop=number(row["crop_nll"]),
            ngram=number(row["ngram_nll"]),
            bpb=number(row["bpb"]),
            n_docs=number(row["n_docs"]),
            n_targets=number(row["n_targets"]),
            n_seeds=number(row.get("n_seeds", 1)),
            accuracy=number(row.get("accuracy")),
            exact=number(row.get("exact")),
            over_seeds=(*three(*OF_SEEDS[:3]), number(row.get(OF_SEEDS[3]))),
            chance=number(row.get("chance")),
            median=number(row.get("nll_median")),
            verdict=str(row.get("verdict", "")),
            gain_b=three("gain_b", "gain_b_lo", "gain_b_hi"),
            share=three("share", "share_lo", "share_hi"),
            long=three("long_nll", "long_lo", "long_hi"),
            repeat=three(*PROBES[3:]),
            members=row.get("members", ()),
        )

    @property
    def explodes(self) -> bool:
        """Whether a mean says little: worse than the n-gram model, by a verdict."""
        return self.verdict == EXPLODES


@dataclass
class Entry:
    """A run under one rescaling: a row of the table, a line of the figure."""

    run_id: str
    run: str  # the run's name in this section
    preset: str
    rescale: str
    factor: str
    options: str
    cells: dict[int, Cell] = field(default_factory=dict)
    stamps: list[str] = field(default_factory=list)
    tied: str = ""  # options that follow L: the value used and the paper's

    @property
    def plain(self) -> bool:
        return self.rescale == "none"

    @property
    def rule(self) -> str:
        """`yarn@8 beta=auto`"""
        return f"{rescale_label(self.rescale, self.factor)} {self.options}".strip()

    @property
    def label(self) -> str:
        """Its name in the section: `rope`, `rope yarn@8`."""
        return f"{self.run} {self.options if self.plain else self.rule}".strip()

    def longer(self) -> dict[int, Cell]:
        """Cells of the run that was trained longer, by length: losses alone."""
        none = math.nan
        return {
            length: Cell(
                cell.status,
                *cell.long,
                base=none,
                crop=none,
                ngram=none,
                bpb=none,
                n_docs=cell.n_docs,
                n_targets=cell.n_targets,
                n_seeds=cell.n_seeds,
            )
            for length, cell in sorted(self.cells.items())
            if cell.long[0] == cell.long[0]
        }

    @property
    def unsupported(self) -> bool:
        """True when the run knows this rescaling at no length."""
        return all(cell.status == "unsupported_rescale" for cell in self.cells.values())
