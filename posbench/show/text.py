"""What `posbench show` prints for people: 80 columns, long tables abbreviated."""

import dataclasses
import inspect
import textwrap
from typing import Any

from posbench.settings import default_of
from posbench.show.grid import WIDTH, grid, short, wrapped
from posbench.show.keys import ROTARY
from posbench.show.printed import printed
from posbench.show.subject import Subject

#: what each hook does, in order
ACTS = {
    "embed": "adds to the token stream, once, before the first layer",
    "prepare": "reads a layer's stream, before its attention",
    "rotate": "turns queries and keys by their positions",
    "relative_position": "gives queries and keys other positions to turn by",
    "distance_bias": "adds to the scores, by distance",
    "key_bias": "adds to the scores, by key",
    "pair_bias": "adds to the scores, by query and key",
    "content_bias": "changes the scores by what queries and keys hold",
    "visible": "hides keys",
    "logit_scale": "multiplies q . k",
    "normalise": "makes an output of scores and values, not by softmax alone",
    "attend": "computes attention by itself",
}
KINDS = {"posenc": "scheme", "rescale": "rescaling", "positions": "position sampler"}


def text(found: Subject, facts: dict[str, Any]) -> str:
    """The facts and the tables, section by section."""
    parts = [
        _head(found, facts),
        _docstring(inspect.getdoc(found.named.cls) or ""),
        _acts(found, facts["hooks"]),
        _properties(facts["properties"]),
        _parameters(facts["properties"].get("parameters", [])),
        _options(found, facts["properties"].get("tied", [])),
        _frame(found),
        *printed(found, facts["tables"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(found: Subject, facts: dict[str, Any]) -> str:
    named = found.named
    about = [KINDS[named.group], facts["family"], facts["paper"]]
    if named.label != named.name:
        about[0] = f"preset of {named.name}"
    lines = [f"{named.label} ({'; '.join(dict.fromkeys(x for x in about if x))})"]
    lines += [f"also a {KINDS[x.partition('=')[0]]}: posbench show {x}" for x in named.also]
    return "\n".join(lines)


def _docstring(doc: str) -> str:
    """Its paragraphs; lines that are set in keep their place."""
    lines: list[str] = []
    for paragraph in doc.split("\n\n"):
        rows = paragraph.splitlines()
        if any(row.startswith(" ") for row in rows):
            lines += [f"  {row}" for row in rows]
        else:
            lines += textwrap.wrap(
                " ".join(rows), WIDTH, initial_indent="  ", subsequent_indent="  "
            )
        lines.append("")
    return "\n".join(lines[:-1])


def _acts(found: Subject, hooks: list[str]) -> str:
    """Where it acts."""
    lines = []
    if found.rule is not None and found.trained is not None:
        label = found.trained.label
        lines.append(f"acts on {found.rule.acts_on}; {label} under it:")
    elif found.sampler is not None:
        return "acts on positions, before anything else"
    else:
        lines.append("acts" if hooks else "acts nowhere")
    width = max(map(len, hooks), default=0)
    return "\n".join([*lines, *(f"  {hook:<{width}}  {ACTS[hook]}" for hook in hooks)])


def _properties(properties: dict[str, Any]) -> str:
    """What it declares."""
    lines = ["properties"]
    for word, value in (("yes", True), ("no", False)):
        names = [k for k, v in properties.items() if v is value]
        if names:
            lines.append(wrapped(f"  {word:<4}", ", ".join(names)))
    rest = [
        f"{k} {_value('any' if v is None else v)}"
        for k, v in properties.items()
        if not isinstance(v, bool) and k not in ("parameters", "tied", "special_cases")
    ]
    lines += [wrapped("      ", ", ".join(rest))] if rest else []
    cases = [f"{c['equals']} with {c['case']}" for c in properties.get("special_cases", [])]
    lines += [wrapped("  equals ", "; ".join(cases))] if cases else []
    return "\n".join(lines)


def _parameters(parameters: list[dict[str, Any]]) -> str:
    """Names, shapes and initial values."""
    if not parameters:
        return ""
    rows = [p["name"] for p in parameters]
    cells = [[" x ".join(map(str, p["shape"])), p["initial"]] for p in parameters]
    head = ["shape", "before training"]
    kept = range(len(rows))
    return grid("parameters", "name", rows, head, lambda i, j: cells[i][j], kept, "<")


def _options(found: Subject, tied: list[dict[str, str]]) -> str:
    """Options as used, by default and in the paper."""
    paper = {t["option"].rpartition(".")[2]: (t["paper"], t["used"]) for t in tied}
    derived = found.rule.used(*found.lengths) if found.rule is not None else {}
    rows: dict[str, list[str]] = {}

    def add(config: Any) -> None:
        for f in dataclasses.fields(config):
            if f.name != "name" and f.name not in rows:
                given = derived.get(f.name, getattr(config, f.name))
                said, used = paper.pop(f.name, ("", _value(given)))
                rows[f.name] = [used, _value(default_of(f)), said]

    add(found.config)
    if found.rule is not None and found.trained is not None:
        rows["posenc"] = [found.trained.label, ROTARY, ""]
        add(found.trained.config)
    rows |= {name: [used, "", text] for name, (text, used) in paper.items()}
    if not rows:
        return ""
    names, head = list(rows), ["used", "default", "paper"]
    if not any(row[2] for row in rows.values()):
        head.pop()
    cells = list(rows.values())
    title = "options"
    if found.example:
        title += f"; {', '.join(found.example)} must be given, and is an example here"
    kept = range(len(names))
    return grid(title, "name", names, head, lambda i, j: cells[i][j], kept, "<")


def _value(value: Any) -> str:
    """An option's value, shortened where it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "yes", False: "no"}[value]
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(short(v) for v in value[:2])}, ... {len(value)} in all]"
    return short(value)


def _frame(found: Subject) -> str:
    """The sizes and lengths that the tables are for."""
    values = found.frame.of(found.sampler is not None)
    return wrapped("for ", ", ".join(f"{k} {v}" for k, v in values.items()))
