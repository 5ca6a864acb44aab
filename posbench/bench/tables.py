"""Results of a bench as text, 80 columns."""

import textwrap
from collections.abc import Callable
from typing import Any

from posbench.bench import EVAL, STARTUP, TRAIN
from posbench.bench.compare import Comparison
from posbench.bench.result import EAGER, Measurement, Result
from posbench.bench.statistics import Ratio, median, quartiles

WIDTH = 80
HOW = "medians and quartiles; ratios within a round (95 % interval)"


def text(result: Result) -> str:
    """All tables of a result, and its notes."""
    found = [table(result) for part, table in TABLES.items() if part in result.settings]
    if result.notes:
        found.append("\n".join(["not measured:", *(_wrapped(n) for n in result.notes)]))
    return "\n\n".join(found)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ")


def seconds(value: float) -> str:
    """Four characters or so: 12.3 s, 456 ms, 78 us."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            return f"{_three(value * factor)} {unit}"
    raise AssertionError


def _three(value: float) -> str:
    """Three digits at least, thousands separated."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _spread(one: Measurement, factor: float = 1.0) -> str:
    """`low-high` of the quartiles; empty where there is one sample."""
    if len(one.samples) == 1:
        return ""
    low, high = quartiles(one.samples)
    return f"{_three(low * factor)}-{_three(high * factor)}"


def ratio(value: Ratio | None) -> str:
    """`1.05 1.03-1.07`; `1` for the reference itself."""
    if value is None:
        return "1"
    low, high = (_three(x) for x in (value.low, value.high))
    interval = f" {low}-{high}" if value.low == value.low else ""
    return f"{_three(value.value)}{interval}"


def _heading(result: Result, part: str, yardstick: Measurement | None) -> list[str]:
    """What was measured, and how fast the machine was."""
    env, own = result.environment, result.settings[part]
    model: dict[str, Any] = own["model"]
    shape = f"{model['n_layers']} layers, width {model['d_model']}, {model['n_heads']} heads"
    words = f"{part}: {model['style']}, {shape}, L = {own['train.seq_len']}"
    lines = [words + _more(own), f"{env['cpu']}, {env['cores']} cores, torch {env['torch']}"]
    if yardstick is not None:
        n, rates = (
            yardstick.facts["size"],
            [yardstick.facts["operations"] / s / 1e9 for s in yardstick.samples],
        )
        low, high = quartiles(rates)
        lines.append(
            f"matrix product {n} x {n} {yardstick.facts['dtype']}: {median(rates):,.0f} GFLOP/s "
            f"({low:,.0f} to {high:,.0f}), threads: {yardstick.facts['threads']}, "
            f"rounds: {len(rates)}"
        )
    return [*(part for line in [*lines, HOW] for part in textwrap.wrap(line, WIDTH)), ""]


def _more(own: dict[str, Any]) -> str:
    if "train.batch_size" not in own:
        return ""
    data = f"{own['data']['name']} {own['data']['tokenizer']}"
    return f", batch {own['train.batch_size']}, {own['train.precision']}, {data}"


def training(result: Result) -> str:
    """Steps of every scheme, then what a whole run takes."""
    yardstick = result.get("train/matmul")
    lines = _heading(result, TRAIN, yardstick)
    lines.append(
        f"{'scheme':<16}{'step ms':>8}  {'quartiles':<13}{'x none':<16}"
        f"{'tok/s':>8}{'GFLOP/s':>9}{'share':>7}"
    )
    steps = [m for m in result.measurements if m.name.startswith("train/") and m.facts.get("steps")]
    last = ""
    for one in steps:
        _, scheme, mode = one.name.split("/")
        rate = one.facts["operations"] / one.median / 1e9
        speed = yardstick.facts["operations"] / yardstick.median / 1e9 if yardstick else 0.0
        lines += [scheme] if mode != EAGER and scheme != last else []
        label, last = scheme if mode == EAGER else f"  {mode}", scheme
        share = f"{rate / speed:.1%}" if speed else ""
        lines.append(
            f"{label:<16}{_three(one.median * 1e3):>8}  {_spread(one, 1e3):<13}"
            f"{ratio(result.ratio(one)):<16}{one.facts['tokens'] / one.median:>8,.0f}"
            f"{rate:>9.1f}{share:>7}"
        )
    return "\n".join(lines + _totals(steps))


def _totals(steps: list[Measurement]) -> list[str]:
    """Seconds of the whole run, where something was compiled."""
    compiled = {m.name.split("/")[1]: m for m in steps if "compiling" in m.facts}
    if not compiled:
        return []
    count = steps[0].facts["steps"]
    eager = {m.name.split("/")[1]: m for m in steps if m.name.endswith(EAGER)}
    lines = [
        "",
        f"total for this run of {count:,} steps, without validation and checkpoints",
        f"{'scheme':<16}{'eager':>10}{'compiled':>10}  of which compiling",
    ]
    for scheme, one in compiled.items():
        whole = f"{count * eager[scheme].median:,.0f} s" if scheme in eager else "-"
        total = count * one.median + one.facts["compiling"]
        kept = "nothing was in the cache" if one.facts["cold"] else "with torch's cache on disk"
        lines.append(
            f"{scheme:<16}{whole:>10}{f'{total:,.0f} s':>10}  "
            f"{one.facts['compiling']:.1f} s ({kept})"
        )
    return lines


def evaluation(result: Result) -> str:
    """Passes by length, one block for every scheme."""
    lines = _heading(result, EVAL, result.get("eval/matmul"))
    lines[-1:] = [
        "one window of random tokens, its last 32 predictions scored, untrained weights;",
        "memory: peak of a pass in a process of its own, above what it held before",
    ]
    times = [m for m in result.measurements if m.name.startswith("eval/") and m.yardstick]
    for scheme in dict.fromkeys(m.name.split("/")[1] for m in times):
        lines += ["", f"{scheme:<12}{'time':>9}  {'quartiles ms':<18}{'ratio':<23}{'peak MiB':>9}"]
        for one in (m for m in times if m.name.split("/")[1] == scheme):
            length = one.name.split("/")[2]
            memory = result.get(f"memory/{scheme}/{length}")
            peak = f"{memory.median / 2**20:,.1f}" if memory else ""
            quotient = result.ratio(one)
            against = one.reference.split("/")[2 if length == "prefix" else 1]
            compared = f"{ratio(quotient)} x {against}" if quotient else ""
            lines.append(
                f"{length:>10}  {seconds(one.median):>9}  {_spread(one, 1e3):<18}"
                f"{compared:<23}{peak:>9}".rstrip()
            )
        lines += _growth(result, scheme)
    return "\n".join(lines)


def _growth(result: Result, scheme: str) -> list[str]:
    """By how much memory grows where the longest length is four times another one."""
    peaks = {
        int(m.name.split("/")[2]): m.median
        for m in result.measurements
        if m.name.startswith(f"memory/{scheme}/")
    }
    longest = max(peaks, default=0)
    if not longest or longest // 4 not in peaks:
        return []
    factor = peaks[longest] / peaks[longest // 4]
    return [f"peak memory from {longest // 4:,} to {longest:,} tokens: {factor:.2f} times"]


def startup(result: Result) -> str:
    """Starts of fresh processes."""
    env = result.environment
    lines = [
        f"startup: fresh processes on {env['cpu']}, {env['cores']} cores",
        HOW,
        "",
        f"{'':<20}{'seconds':>8}  {'quartiles':<14}x python -c pass",
    ]
    for one in (m for m in result.measurements if m.name.startswith("startup/")):
        lines.append(
            f"{one.name.partition('/')[2]:<20}{one.median:>8.3f}  {_spread(one):<14}"
            f"{ratio(result.ratio(one))}"
        )
    return "\n".join(lines)


TABLES: dict[str, Callable[[Result], str]] = {
    TRAIN: training,
    EVAL: evaluation,
    STARTUP: startup,
}


def comparison(found: Comparison, where: str) -> str:
    """New over old, with the verdicts."""
    rule = (
        f"against {where}: new / old (95 % interval of the rank test); noise unless both ratios, "
        "as measured and over the yardstick's median, lie at least 3 % off 1 and their intervals "
        "leave 1 out; memory: 5 % and 8 MiB"
    )
    lines = [
        *textwrap.wrap(rule, WIDTH),
        *map(_wrapped, found.remarks),
        "",
        f"{'measurement':<34}{'as measured':<18}{'over yardstick':<18}verdict",
    ]
    for one in found.changes:
        normalised = ratio(one.normalised) if one.normalised else ""
        lines.append(f"{one.name:<34}{ratio(one.raw):<18}{normalised:<18}{one.verdict}")
    for title, names in (("only now", found.only_new), ("only before", found.only_old)):
        if names:
            lines.append(_wrapped(f"{title}: {', '.join(names)}")[2:])
    return "\n".join(lines)
