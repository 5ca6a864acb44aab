"""Names from files, classes from names, and errors that list what is known."""

import subprocess
import sys
from pathlib import Path

import pytest

from posbench import registry
from posbench.errors import ConfigError

SCHEMES = {"none", "sinusoidal", "learned", "t5", "rope", "alibi"}
RULES = {"none", "pi", "ntk", "ntk_by_parts", "dynamic_ntk", "yarn", "yarn_paper"}
CORPORA = {"sotu", "code", "pystdlib", "text"}


def test_names_are_the_files_with_a_registered_class() -> None:
    assert set(registry.names("posenc")) >= SCHEMES
    assert set(registry.names("rescale")) >= RULES
    assert set(registry.names("data")) >= CORPORA
    assert "standard" in registry.names("positions")
    assert "base" not in registry.names("posenc")
    for group in registry.PACKAGES:
        assert list(registry.names(group)) == sorted(registry.names(group))


def test_options_hold_presets_too() -> None:
    assert "rope_matched" in registry.options("posenc")
    assert set(registry.options("posenc")) >= SCHEMES
    assert set(registry.options("model")) >= {"tiny", "small", "base"}
    assert set(registry.options("optimizer")) == {"adamw", "muon"}
    assert set(registry.options("experiment")) >= {"demo", "smoke"}


@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g in registry.PACKAGES for n in registry.names(g)]
)
def test_every_name_gives_its_class(group: str, name: str) -> None:
    cls = registry.get(group, name)
    assert cls.name == name and cls.group == group
    assert cls.__module__.endswith(f".{name}")
    assert cls.Config().name == name
    assert cls.Config.__doc__


@pytest.mark.parametrize("group", registry.PACKAGES)
def test_an_unknown_name_lists_the_known_ones(group: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.get(group, "nosuch")
    assert str(caught.value).startswith(f"{group}=nosuch is unknown")
    for name in registry.names(group):
        assert name in str(caught.value)


def test_a_near_miss_is_guessed() -> None:
    assert "did you mean alibi?" in registry.unknown("posenc", "alibbi", ["alibi", "rope"])
    assert "did you mean" not in registry.unknown("posenc", "qqqq", ["alibi", "rope"])


def test_the_catalogue_has_every_option_with_a_line() -> None:
    entries = registry.catalogue()
    for group in registry.KINDS:
        assert {e.name for e in entries if e.option == group} == set(registry.options(group))
    assert all(e.summary and e.kind and e.family for e in entries)
    papers = {e.name: e.paper for e in entries if e.option == "posenc" and e.family != "preset"}
    assert all(papers[n] for n in SCHEMES)


def test_names_and_catalogue_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from posbench import registry\n"
        "registry.catalogue(), registry.options('posenc')\n"
        "heavy = ('torch', 'pandas', 'numpy', 'hydra', 'omegaconf')\n"
        "print([m for m in heavy if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A syntax error, a class that is not registered, an import that fails."""
    folder = tmp_path / "encodings"
    folder.mkdir()
    (folder / "broken.py").write_text("\n@register\nclass Broken(:\n")
    (folder / "plain.py").write_text("class Plain: pass\n")
    monkeypatch.setattr(registry, "root", lambda: tmp_path)
    registry._built_in.cache_clear()
    try:
        assert registry.names("posenc") == ("broken",)
        entry = registry._from_source("posenc", folder / "broken.py")
        assert entry.name == "broken" and "cannot be read" in entry.summary
        with pytest.raises(ConfigError, match="encodings/broken.py cannot be read"):
            registry.get("posenc", "broken")
        with pytest.raises(ConfigError, match="encodings/plain.py has no class with @register"):
            registry.get("posenc", "plain")
    finally:
        registry._built_in.cache_clear()
