"""Rows of pictures and clips by the axes along which a test is larger than training."""

import math

import pandas as pd

#: number of axes -> what the axes are called
AXES = {2: ("rows", "columns"), 3: ("frames", "rows", "columns")}


def growing(train_shape: str, test_shape: str) -> str:
    """The axes along which a test is larger than training: `rows and columns`; empty for text."""
    L, T = (list(map(int, shape.split("x"))) for shape in (train_shape, test_shape))
    names = AXES.get(len(L), ("",))
    return " and ".join(name for name, a, b in zip(names, L, T, strict=True) if b > a)


def by_axis(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the axes that grow; those at L or below stand beside each choice of axes."""
    rows["growing"] = list(map(growing, rows["train_shape"], rows["test_shape"]))
    parts = []
    for (_, train), frame in rows.groupby(["data", "train_shape"], sort=False):
        choices = sorted(set(frame["growing"]) - {""}) or [""]
        for choice in choices:
            mine = frame[frame["growing"].isin(("", choice))]
            every = list(dict.fromkeys(mine["test_shape"]))
            for label, shapes in _series(choice, str(train), every):
                parts.append(mine[mine["test_shape"].isin(shapes)].assign(growing=label))
    return pd.concat(parts)


def _series(choice: str, train: str, shapes: list[str]) -> list[tuple[str, list[str]]]:
    """Shapes such that no two of a series have equally many tokens; each has the training shape."""
    found: list[dict[int, str]] = [{}]
    labels = [choice]
    for shape in sorted(shapes, key=lambda s: (s != train, s)):
        tokens = math.prod(map(int, shape.split("x")))
        place = next((s for s in found if tokens not in s), None)
        if place is None:
            place = {k: s for k, s in found[0].items() if s == train and k != tokens}
            found.append(place)
            labels.append(f"{choice or 'tokens elsewhere'}: {shape}")
        place[tokens] = shape
    return [(label, list(series.values())) for label, series in zip(labels, found, strict=True)]
