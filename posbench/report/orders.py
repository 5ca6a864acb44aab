"""The order of the rescalings at each length: stated as one only where rotary runs agree."""

from posbench.report.sections import Section, factor_key

TITLE = "order of the rescalings past L, best first (differences are not tested)"


def order_lines(section: Section) -> list[str]:
    """Lines `@8 2x  rope  ntk < yarn < pi`; one line where all rotary runs have the same order."""
    found: dict[tuple[str, int], dict[str, list[tuple[float, str]]]] = {}
    for entry in section.entries:
        if entry.plain or entry.options or not entry.factor:
            continue
        for length, cell in entry.cells.items():
            if cell.status == "ok" and length > section.train_len:
                runs = found.setdefault((entry.factor, length), {})
                runs.setdefault(entry.run, []).append((cell.nll, entry.rescale))
    lines = []
    for factor, length in sorted(found, key=lambda key: (factor_key(key[0]), key[1])):
        orders = {
            run: " < ".join(name for _, name in sorted(values))
            for run, values in found[factor, length].items()
            if len(values) > 1
        }
        where = f"@{factor} {length / section.train_len:.3g}x".ljust(10) + " "
        if len(orders) > 1 and len(set(orders.values())) == 1:
            orders = {"all runs": next(iter(orders.values()))}
        width = max(map(len, orders), default=0)
        for run, order in orders.items():
            lines.append(f"  {where}{run.ljust(width)}  {order}")
            where = " " * len(where)
    return [TITLE, *lines] if lines else []
