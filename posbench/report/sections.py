"""Tidy rows arranged for reading: sections that may be compared inside, entries, cells, labels.

Two numbers share a section only if they share corpus, tokenizer, training shape, protocol, track,
tier, dtype and targets, and if the same axes of a picture or clip are longer than in training.
Where all lengths are read off the same windows (`prefix`), these stand for the targets, which are
the same down a column, not along a row. Tables and figures are both drawn from here, so that they
show the same rows in the same order under the same names.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from posbench.report.entries import Cell, Entry, number
from posbench.report.growing import by_axis
from posbench.report.names import Variant, lines_of, names_of
from posbench.settings import PROTOCOLS

PRESETS = ("none", "sinusoidal", "learned", "t5", "alibi", "rope")
RESCALINGS = ("none", "pi", "ntk", "ntk_by_parts", "dynamic_ntk", "yarn", "yarn_paper")
COMPARABLE = (
    "data", "tokenizer", "train_len", "train_shape", "growing", "protocol", "track", "tier",
    "dtype", "targets_hash",
)  # fmt: skip
#: the run that was trained at test lengths
LONG = "trained_long"
#: number of axes -> what one sample is
SAMPLES = {1: "document", 2: "picture", 3: "clip"}

Key = tuple[int, float, str]


def preset_key(preset: str) -> Key:
    """The survey's order, then the variants of rope, then the others by name."""
    if preset in PRESETS:
        return PRESETS.index(preset), 0.0, ""
    return len(PRESETS) + (not preset.startswith("rope_")), 0.0, preset


def rescale_key(rescale: str) -> Key:
    known = rescale in RESCALINGS
    return (RESCALINGS.index(rescale) if known else len(RESCALINGS)), 0.0, "" if known else rescale


def factor_key(factor: str) -> Key:
    """No factor, then numbers from small to large, then words such as `auto`."""
    if not factor:
        return 0, 0.0, ""
    try:
        return 1, float(factor), ""
    except ValueError:
        return 2, 0.0, factor


def protocol_key(protocol: str) -> Key:
    known = protocol in PROTOCOLS
    return (PROTOCOLS.index(protocol) if known else len(PROTOCOLS)), 0.0, "" if known else protocol


def row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sort key of a tidy row: preset, rescaling, factor, protocol, test length, then the rest."""
    return (
        preset_key(row["preset"]),
        rescale_key(row["rescale"]),
        factor_key(row["factor"]),
        row["options"],
        protocol_key(row["protocol"]),
        row["test_len"],
        row["test_shape"],
        *(str(row[name]) for name in ("data", "tokenizer", "tier", "track")),
        row["train_len"],
        *(str(row[name]) for name in ("seed", "run_id", "targets_hash", "dtype")),
    )


def sorted_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows in reading order, numbered from 0."""
    keys = [row_key(row) for row in records(rows)]
    return rows.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def stamp_parts(stamps: Iterable[str]) -> list[str]:
    """The distinct parts of `; `-joined stamps, in order of first appearance."""
    parts = (part.strip() for stamp in stamps for part in stamp.split(";"))
    return list(dict.fromkeys(part for part in parts if part))


@dataclass
class Section:
    """Entries that may be compared with each other."""

    keys: dict[str, Any]
    entries: list[Entry]
    #: test lengths in tokens, and what they are called: themselves, or shapes
    lengths: list[int]
    shapes: dict[int, str]
    interval_over: str
    #: every length has targets of its own
    moving: bool = False
    #: of the names that are told apart by settings
    variants: dict[str, Variant] = field(default_factory=dict)

    @property
    def ratio_lengths(self) -> list[int]:
        """The lengths with a ratio to L: all, or those whose targets the base was measured on."""
        if not self.moving:
            return self.lengths
        based = {n for e in self.entries for n, cell in e.cells.items() if cell.base == cell.base}
        return [n for n in self.lengths if n in based]

    @property
    def train_len(self) -> int:
        return int(self.keys["train_len"])

    @property
    def train_shape(self) -> str:
        """L in words: `128`, `16x16`."""
        return str(self.keys["train_shape"])

    @property
    def axes(self) -> int:
        """Axes of a position: 1 for text."""
        return 1 + self.train_shape.count("x")

    @property
    def longer(self) -> list[Entry]:
        """The runs that were trained longer, as lines of their own: one, or one for some runs."""
        found: dict[tuple[Any, ...], tuple[dict[int, Cell], list[str]]] = {}
        for entry in self.entries:
            if cells := entry.longer():
                curve = tuple((length, round(cell.nll, 6)) for length, cell in cells.items())
                names = found.setdefault(curve, (cells, []))[1]
                names += [] if entry.run in names else [entry.run]
        several = len(found) > 1
        return [
            Entry("", f"{LONG} ({', '.join(of)})" if several else LONG, LONG, "none", "", "", cells)
            for cells, of in found.values()
        ]

    @property
    def cells(self) -> list[Cell]:
        return [cell for entry in self.entries for cell in entry.cells.values()]

    @property
    def has_intervals(self) -> bool:
        return any(math.isfinite(cell.hi) for cell in self.cells)

    @property
    def stamps(self) -> dict[str, list[str]]:
        """Stamp text -> names of the runs that carry it."""
        found: dict[str, list[str]] = {}
        for entry in self.entries:
            for stamp in entry.stamps:
                names = found.setdefault(stamp, [])
                if entry.run not in names:
                    names.append(entry.run)
        return found

    def stamp_lines(self) -> list[str]:
        """`stamp (runs)` for every stamp."""
        everyone = {entry.run for entry in self.entries}
        lines = []
        for stamp, names in self.stamps.items():
            whole = len(everyone) > 1 and set(names) == everyone
            lines.append(f"{stamp} ({'all runs' if whole else ', '.join(names)})")
        return lines

    def variant_lines(self) -> list[str]:
        """`run: settings` for every run whose name has a hash in their place."""
        return lines_of(self.variants)

    def counts(self, name: str) -> str:
        """`22`, or `20-22` where the cells differ; empty when no cell knows."""
        known = sorted({int(v) for cell in self.cells if (v := getattr(cell, name)) == v})
        if not known:
            return ""
        return str(known[0]) if len(known) == 1 else f"{known[0]}-{known[-1]}"

    def facts(self) -> list[str]:
        """What the numbers rest on, for titles: protocol, corpus, counts, seeds."""
        keys = self.keys
        whole = f" of {self.lengths[-1]}" if keys["protocol"] == "prefix" else ""
        other = f"{whole} (other targets at every length)" if self.moving else ""
        facts = [f"tier {keys['tier']}", f"{keys['protocol']}{other}"]
        facts += [f"{keys['data']} {keys['tokenizer']}", f"L = {self.train_shape}"]
        if keys["growing"]:
            facts.append(f"more {keys['growing']}")
        if keys["track"] not in ("", "strict"):
            facts.append(f"track {keys['track']}")
        if keys["dtype"] not in ("", "float32"):
            facts.append(str(keys["dtype"]))
        if docs := self.counts("n_docs"):
            sample = "window" if self.interval_over == "windows" else SAMPLES[self.axes]
            facts.append(f"{docs} {sample}{'' if docs == '1' else 's'}")
        if targets := self.counts("n_targets"):
            facts.append(f"{targets} tokens a {'length' if self.axes == 1 else 'shape'}")
        seeds = self.counts("n_seeds") or "1"
        return [*facts, f"{seeds} seed{'' if seeds == '1' else 's'}"]

    def unit(self) -> str:
        """What the intervals run over."""
        return self.interval_over + (
            " and seeds" if self.counts("n_seeds") not in ("", "1") else ""
        )


def _reading(row: dict[str, Any]) -> str:
    """`stride=32` where windows go on by another number of tokens than half of theirs.

    `distance=96` where the earlier copy of a probe lies at a distance of its own.
    """
    stride, distance = number(row.get("stride")), number(row.get("distance"))
    usual = math.isnan(stride) or stride == max(1, row["test_len"] // 2)
    texts = ["" if usual else f"stride={stride:g}"]
    texts += [] if math.isnan(distance) else [f"distance={distance:g}"]
    return " ".join(texts).strip()


def sections(rows: pd.DataFrame) -> list[Section]:
    """Tidy rows (per run or pooled over seeds) -> sections in a stable order."""
    result = []
    rows = by_axis(sorted_rows(rows))
    moving = rows["windows_hash"] != ""
    rows["targets_hash"] = rows["windows_hash"].where(moving, rows["targets_hash"])
    # what stands on the frozen targets is no reference for a whole line
    rows.loc[moving, ["crop_nll", "ngram_nll"]] = math.nan
    for values, frame in rows.groupby(list(COMPARABLE), sort=False, dropna=False):
        names, variants = names_of(records(frame.drop_duplicates("run_id")))
        entries: dict[tuple[str, ...], Entry] = {}
        for row in records(frame):
            rule = (row["rescale"], row["factor"], f"{row['options']} {_reading(row)}".strip())
            key = (row["run_id"], *rule)
            if key not in entries:
                entries[key] = Entry(row["run_id"], names[row["run_id"]], row["preset"], *rule)
            entry = entries[key]
            entry.cells[int(row["test_len"])] = Cell.of(row)
            entry.tied = str(row.get("tied", ""))
            entry.stamps = stamp_parts([*entry.stamps, str(row["stamp"])])
        order = list(dict.fromkeys(entry.run_id for entry in entries.values()))
        # of variants the plainest first
        place = {
            e.run: (preset_key(e.preset), variants[e.run].rank if e.run in variants else 0)
            for e in entries.values()
        }
        over = set(frame["interval_over"]) if "interval_over" in frame else {"documents"}
        result.append(
            Section(
                keys=dict(zip(COMPARABLE, values, strict=True)),
                # sorted() is stable: inside a run the rescalings keep their order
                entries=sorted(
                    entries.values(), key=lambda e: (*place[e.run], order.index(e.run_id))
                ),
                lengths=sorted({int(length) for length in frame["test_len"]}),
                shapes=dict(zip(frame["test_len"], frame["test_shape"], strict=True)),
                interval_over=min(over),
                moving=bool(frame["windows_hash"].iloc[0]),
                variants=variants,
            )
        )
    result.sort(
        key=lambda s: [protocol_key(v) if k == "protocol" else v for k, v in s.keys.items()]
    )
    return result
