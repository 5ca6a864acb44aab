"""Help, import and completion: at once, without the heavy libraries."""

import os
import subprocess
import sys
from typing import Any

import pytest

from posbench import registry
from posbench.show.keys import GROUPS


def fresh(*lines: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A new process that says at its end what it imported."""
    code = "\n".join(
        [
            "import sys, atexit",
            "heavy = {'torch', 'pandas', 'numpy', 'hydra', 'omegaconf', 'matplotlib'}",
            "atexit.register(lambda: print([*heavy & {*sys.modules}], file=sys.stderr))",
            *lines,
        ]
    )
    options: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "env": os.environ | environment,
    }
    return subprocess.run([sys.executable, "-c", code], **options)


def test_help_and_the_module_itself_are_light() -> None:
    for lines in (
        ["sys.argv = ['posbench', 'show', '--help']", "from posbench.cli import main", "main()"],
        ["import posbench", "print(posbench.tables)"],
    ):
        done = fresh(*lines)
        assert done.stdout and done.stderr.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("posbench show yarn_", 2, "yarn_paper"),
        ("posbench show rescale = pi", 4, "pi"),
        ("posbench show rescale = pi po", 5, "posenc= positions="),
        ("posbench show yarn al", 3, "alpha="),
        ("posbench show yarn factor = 4 b", 6, "base= beta="),
        ("posbench show t5 b", 3, "buckets="),
        ("posbench show p_rope rot", 3, "rotary_fraction="),
        ("posbench show rope dtype =", 4, "float64 float32 bfloat16 float16"),
        ("posbench show pi posenc = fi", 5, "fire"),
        ("posbench show rope seed = 1", 5, ""),
    ],
)
def test_completion(words: str, index: int, expected: str) -> None:
    done = fresh(
        "sys.argv = ['posbench']",
        "from posbench.cli import app",
        "app(prog_name='posbench')",
        _POSBENCH_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(index),
    )
    assert done.stdout.split() == expected.split(), done.stderr
    assert done.stderr.strip() == "[]"


def test_completion_where_words_are_whole() -> None:
    from types import SimpleNamespace

    from posbench import complete

    def found(*words: str, last: str) -> list[str]:
        return complete.show(SimpleNamespace(params={"arguments": list(words)}), [], last)

    assert "rescale=" in found(last="") and "alibi" in found(last="")
    assert found(last="rescale=yarn_") == ["rescale=yarn_paper"]
    assert found("yarn", last="dtype=b") == ["dtype=bfloat16"]
    assert {"rotary_fraction=", "posenc=", "truncate="} <= set(found("yarn", last=""))
    assert "posenc=" not in found("alibi", last="")


@pytest.mark.parametrize("group", GROUPS)
def test_completed_options_are_those_of_the_classes(group: str) -> None:
    from posbench.show.ask import fields
    from posbench.show.options import options

    for name in registry.names(group):
        assert sorted(options(group, name)) == sorted(fields(registry.get(group, name).Config))
