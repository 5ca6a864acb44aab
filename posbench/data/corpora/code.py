"""Program source: text in which far context is worth something."""

from pathlib import PurePosixPath

from posbench.data.corpora.base import Corpus, Document, package_folder
from posbench.registry import register


@register
class Code(Corpus):
    """Source of sympy 1.14.0 without tests and generated files, about 820 modules of Python.

    Left out: `tests` and `benchmarks` folders, the parsers and tables that a program wrote
    (`_antlr` folders, `*_generated.py`, `resolvent_lookup.py`), and empty files.

    Group = subpackage to the second level (`polys`, `polys/matrices`, `physics/mechanics`; deeper
    folders belong to their second level). The 40 or so first-level subpackages are few and unequal
    (`polys` and `physics` hold a third of the bytes): at that level 20 long held-out documents
    would cost the training side twice as much.
    """

    family = "code"
    paper = "package sympy 1.14.0; BSD licence"
    frozen = True
    sha256 = "b1f1b1112e2aea0d945f91af126e56f7eb627b2a85ad8a0206c0cde01de3ace2"
    install = "pip install sympy==1.14.0"
    longest = 16384
    long_bytes = 49000

    def read(self) -> list[Document]:
        """One document per module; the id is its path inside the package."""
        root = package_folder("sympy", self.install)
        found = []
        for file in root.rglob("*.py"):
            path = PurePosixPath(file.relative_to(root).as_posix())
            if not _left_out(path):
                group = "/".join(path.parts[:-1][:2]) or path.name
                found.append(Document(str(path), group, file.read_bytes()))
        return found


def _left_out(path: PurePosixPath) -> bool:
    """Tests, benchmarks, and what a program wrote."""
    generated = path.stem.endswith("_generated") or path.name == "resolvent_lookup.py"
    return generated or not {"tests", "benchmarks", "_antlr"}.isdisjoint(path.parts)
