"""The measurements as Markdown: medians, spreads, and ratios round by round."""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from peers.report import table
from peers.speed.bench import DEMO_TOKENS, LONG_RUN, OURS, PRODUCT
from peers.speed.measure import fastest, median, peers, rivals, total
from peers.speed.task import SCORED

HEAD = """\
# Speed beside other libraries

Written by `make bench-peers`. Every contestant is a process of its own; in each round all of them
do some steps, one after the other, in the given order and then in reverse. Numbers are medians over
rounds with the smallest and largest in brackets. **A ratio is the other's time over posbench's in
the same round**: above 1, posbench is faster.
"""
TRAINING = """
## Training

The same batches for all ({corpus}), float32, AdamW, gradients clipped to norm 1. Peers run as
their documentation shows, with torch's AdamW as it is made by default, and once more under
torch.compile. posbench runs its defaults (`train.compile=auto`, decided for {steps:,} steps) and
once without compiling. x-transformers has rotary positions, the fused attention, a gated MLP of
the same width and tied embeddings; Llama the same; nanoGPT learned positions and its own MLP.
x-transformers and Llama predict all but the first of the L tokens that they read, the others all L.

"share" is the floating-point rate of a step (its matrix products and causal attention) over that
of a {size} x {size} float32 matrix product in the same round.
"""
WHOLE = """
## Whole runs

The first step, compiling included with nothing kept from before, and the others at the median;
"start" is what the first step takes more than the others. Imports and the making of the model are
left out here, and contained in the run below.
"""
SWEEP = """
## Lengths

RoPE, one window at each length, all ending with the same token, and the mean loss of the last
{scored} tokens of each. posbench as `eval-lengths` does it. Llama as transformers' guide to
perplexity does it (labels of -100 before the scored tokens), and with `logits_to_keep={scored}`
and no cache. x-transformers gives the logits of the whole window. All without gradients.
"""
LONGEST = """
## Biases

x-transformers' own ALiBi (with its fused attention) and T5 bias (which excludes that) at the
longest length, doubling, that a process survives which may allocate {limit:g} GiB, the second time
at that length; then posbench at the same length under the same limit. One window, the loss of its
last {scored} tokens.
"""


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """`1.30 (1.21 to 1.36)`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def ratios(other: Iterable[float], ours: Iterable[float]) -> list[float]:
    """The other's time over ours, round by round."""
    return [a / b for a, b in zip(other, ours, strict=True)]


def against(row: dict[str, Any], ours: dict[str, Any]) -> str:
    if row is ours or not ours.get("samples"):
        return ""
    return spread(ratios(row["samples"], ours["samples"]))


def shares(row: dict[str, Any], product: dict[str, Any]) -> list[float]:
    """Floating-point rate over the matrix product's, round by round."""
    pairs = zip(row["samples"], product["samples"], strict=True)
    return [row["operations"] / s / (product["operations"] / p) for s, p in pairs]


def training(found: dict[str, Any]) -> list[str]:
    """Lines on one shape."""
    s, rows = found["shape"], found["rows"]
    tokens = s["batch"] * s["length"]
    product, ours = rows[PRODUCT], rows[OURS]
    lines = [
        f"### {s['name']}: {s['layers']} layers, width {s['width']}, {s['heads']} heads, "
        f"L = {s['length']}, batch {s['batch']}, vocabulary {s['vocabulary']:,}",
        "",
    ]
    body = []
    for name, row in rows.items():
        if name == PRODUCT:
            continue
        if not row.get("samples"):
            body.append([name, "", "", f"not run: {row['reason']}", "", ""])
            continue
        rate = spread([tokens / s for s in row["samples"]], ",.0f")
        share = f"{statistics.median(shares(row, product)):.0%}" if "samples" in product else ""
        label = name if name != OURS or row["compiled"] else f"{name} (auto: not compiled)"
        first = f"{row['first']:.1f}"
        body.append([label, f"{row['parameters']:,}", first, rate, share, against(row, ours)])
    head = ["", "parameters", "first step, s", "tokens/s", "share", "ratio"]
    lines += table(head, body)
    if "samples" in product:
        rates = [product["operations"] / s / 1e9 for s in product["samples"]]
        listed = ", ".join(f"{rate:.0f}" for rate in rates)
        lines += [
            "",
            f"{found['steps']} steps a sample. Matrix product by round: {listed} GFLOP/s.",
        ]
    return lines + packing(found.get("packing"))


def packing(found: dict[str, Any] | None) -> list[str]:
    """Lines on two workers side by side."""
    if not found:
        return []
    if "reason" in found:
        return ["", f"Two posbench workers side by side: not run: {found['reason']}."]
    cold, warm = found["firsts"]
    ours = found["rates"][OURS]
    threads = "a single thread" if found["threads"] == 1 else f"{found['threads']} threads"
    body = [
        [
            name if name != OURS else f"two posbench workers of {threads} each, together",
            spread(rates, ",.0f"),
            spread(ratios(ours, rates)) if name != OURS else "",
        ]
        for name, rates in found["rates"].items()
    ]
    text = f"The first step took {cold:.1f} s in the first of the two workers, {warm:.1f} s in the "
    text += "second, which found compiled code kept." if found["compiled"] else "second."
    return ["", *table(["at the same time", "tokens/s", "ratio"], body), "", text]


def whole(record: dict[str, Any]) -> list[str]:
    """Lines on runs from start to end."""
    lines: list[str] = []
    for found in record["training"]:
        s, rows = found["shape"], found["rows"]
        counts = [max(1, DEMO_TOKENS // (s["batch"] * s["length"])), LONG_RUN]
        ran = {n: r for n, r in rows.items() if r.get("samples") and n != PRODUCT}
        body = []
        for name, row in ran.items():
            cells = [name, f"{max(0.0, row['first'] - median(row)):.1f}"]
            for count in counts:
                seconds = total(row, count)
                ratio = seconds / total(rows[OURS], count) if OURS in ran else float("nan")
                cells += [f"{seconds:.0f}", "" if name == OURS else f"{ratio:.2f}"]
            body.append(cells)
        columns = [c for n in counts for c in (f"{n:,} steps, s", "ratio")]
        lines += ["", f"### {s['name']}", "", *table(["", "start, s", *columns], body)]
    return lines + real(record["whole"])


def real(found: dict[str, Any]) -> list[str]:
    """Lines on the runs that were made."""
    if "reason" in found:
        return ["", f"A run from start to end: not run: {found['reason']}."]
    body = []
    for name in (OURS, found["peer"]):
        one = found[name]
        rate = f"{found['tokens'] / one['process']:,.0f}"
        loss = f"{one['loss']:.2f}"
        body.append([name, f"{one['process']:.1f}", f"{one['seconds']:.1f}", rate, loss])
    compiled = "compiled" if found[OURS]["compiled"] else "not compiled"
    ratio = found[found["peer"]]["process"] / found[OURS]["process"]
    loops = found[found["peer"]]["seconds"] / found[OURS]["seconds"]
    text = (
        f"Really made, one run each of {found['steps']} steps of the first shape: posbench with "
        f"its log, validation and checkpoints ({compiled}), the peer with none of these. Nothing "
        "compiled was kept from before."
    )
    head = ["", "process, s", "loop, s", "tokens/s of the process", "last training loss"]
    end = f"Ratio: {ratio:.2f} of the whole process, {loops:.2f} of the loop."
    return ["", text, "", *table(head, body), "", end]


def sweep(found: dict[str, Any]) -> list[str]:
    """Lines on the lengths, in milliseconds."""
    rows = {name: row for name, row in found["rows"].items() if row.get("samples")}
    missing = [f"{n}: not run: {r['reason']}" for n, r in found["rows"].items() if "reason" in r]
    body = [["all", *(spread([1e3 * s for s in r["samples"]], ",.0f") for r in rows.values())]]
    for i, length in enumerate(found["lengths"]):
        cells = [statistics.median(1e3 * run[i] for run in row["lengths"]) for row in rows.values()]
        body.append([f"{length:,}", *(f"{c:,.1f}" for c in cells)])
    body.append(["ratio", *(against(row, found["rows"][OURS]) for row in rows.values())])
    return [*table(["length, ms", *rows], body), *[line for m in missing for line in ("", m)]]


def refusal(stopped: str) -> str:
    """What ended the doubling."""
    asked = re.search(r"tried to allocate (\d+) bytes", stopped)
    if asked:
        return f"a tensor of {int(asked[1]) / 2**30:.1f} GiB was refused"
    return stopped or "not tried"


def beside(one: dict[str, Any]) -> list[float]:
    """x-transformers' seconds over each of posbench's; empty where one is missing."""
    return [one["seconds"] / s for s in one.get("row", {}).get("samples", [])]


def longest(found: list[dict[str, Any]]) -> list[str]:
    """Lines on the biases."""
    body = []
    for one in found:
        after = refusal(one.get("stopped", ""))
        if beside(one):
            other, ours = f"{one['seconds']:.2f}", spread(one["row"]["samples"])
            body.append([f"{one['length']:,}", other, ours, spread(beside(one), ".1f"), after])
        else:
            why = one.get("reason") or one["row"]["reason"]
            body.append(["", "", "", f"not run: {why}", after])
        body[-1].insert(0, one["scheme"])
    head = ["", "length", "x-transformers, s", "posbench, s", "ratio", "one doubling further"]
    return table(head, body)


def summary(record: dict[str, Any]) -> list[str]:
    """The ratios in one table."""
    body = []
    for found in record["training"]:
        rows, name = found["rows"], found["shape"]["name"]
        others = peers(rows)
        if not others or not rows[OURS].get("samples"):
            continue
        for best in rivals(rows):
            body.append([f"training step, {name}", best, against(rows[best], rows[OURS])])
        best = fastest(others, lambda row: total(row, LONG_RUN))
        ratio = total(others[best], LONG_RUN) / total(rows[OURS], LONG_RUN)
        body.append([f"{LONG_RUN:,} steps, {name}, compiling included", best, f"{ratio:.2f}"])
        packed = found.get("packing", {})
        for peer, rates in packed.get("rates", {}).items():
            if peer != OURS:
                pair = spread(ratios(packed["rates"][OURS], rates))
                body.append([f"two workers side by side, {name}", peer, pair])
    run = record["whole"]
    if "reason" not in run:
        ratio = run[run["peer"]]["process"] / run[OURS]["process"]
        body.append([f"a real run of {run['steps']} steps", run["peer"], f"{ratio:.2f}"])
    rows = record["sweep"]["rows"]
    for name, row in rows.items():
        if name != OURS and row.get("samples"):
            body.append(["sweep over lengths", name, against(row, rows[OURS])])
    for one in record["longest"]:
        if beside(one):
            label = f"{one['scheme']} at {one['length']:,} tokens"
            body.append([label, "x-transformers", spread(beside(one), ".1f")])
    return table(["", "against", "ratio"], body)


def machine(record: dict[str, Any]) -> list[str]:
    """What it was measured on."""
    m, versions = record["machine"], record["versions"]
    builds = {v["torch"] for v in versions.values()}
    names = {"ours": OURS, "x_transformers": "x-transformers", "nanogpt": "nanoGPT"}
    libraries = [
        f"{names.get(peer, peer)} {v['library']}"
        for peer, v in versions.items()
        if peer != "product"
    ]
    idle = [i for i in record["idle"] if i >= 0]
    build = ", ".join(sorted(builds))
    lines = [
        f"- {m['processor']}, {m['threads']} threads for every contestant, {m['system']}",
        f"- Python {m['python']}, torch {build} for all; {', '.join(libraries)}",
        f"- {record['rounds']} rounds; {m['minutes']:.1f} minutes in all; load before the start "
        f"{m['load']:.2f}",
    ]
    if idle:
        lines.append(f"- idle contestants together used at most {max(idle):.1%} of a core")
    return lines


def markdown(record: dict[str, Any]) -> str:
    """The whole file."""
    size = round((record["training"][0]["rows"][PRODUCT].get("operations", 0) / 2) ** (1 / 3))
    lines = [HEAD, *machine(record), "", *summary(record)]
    lines.append(TRAINING.format(corpus=record["corpus"], steps=LONG_RUN, size=size or "large"))
    for i, found in enumerate(record["training"]):
        lines += [""] * (i > 0) + training(found)
    lines += [WHOLE.rstrip(), *whole(record)]
    lines += [SWEEP.format(scored=SCORED), *sweep(record["sweep"])]
    limit = max(one["limit"] for one in record["longest"]) / 2**30
    lines += [LONGEST.format(limit=limit, scored=SCORED), *longest(record["longest"])]
    return "\n".join(lines) + "\n"
