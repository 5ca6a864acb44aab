"""One virtual environment per peer, below `.peers/`, kept while its pins stay the same."""

import hashlib
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
#: seconds for one step of an installation
PATIENCE = 1200


@dataclass(frozen=True)
class Peer:
    """A distribution with its version, and the file here that holds its probes."""

    name: str
    version: str
    #: pins of this project that the peer excludes
    lifted: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


PEERS = (
    Peer("attn-gym", "0.0.17"),
    Peer("litgpt", "0.5.13", lifted=("huggingface_hub",)),
    Peer("rotary-embedding-torch", "0.9.1"),
    Peer("transformers", "5.24.0"),
    Peer("x-transformers", "2.31.10"),
)


class NotInstalled(Exception):
    """Why a peer has no environment, in one line."""


def constraints(peer: Peer) -> str:
    """The project's pins, less those that the peer excludes."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return "".join(f"{x}\n" for x in lines if x.split("==")[0] not in peer.lifted)


def ready(peer: Peer, folder: Path) -> Path:
    """Python of the peer's environment, made if it is not there; raises NotInstalled."""
    pins = constraints(peer)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [str(peer), pins, *project["dependencies"], sys.version]
    state = hashlib.sha256("\n".join(asked).encode()).hexdigest()
    place, mark = folder / peer.name, folder / peer.name / "ready"
    python = place / "bin" / "python"
    if mark.is_file() and mark.read_text(encoding="utf-8") == state:
        return python
    mark.unlink(missing_ok=True)
    step(sys.executable, "-m", "venv", "--clear", str(place))
    (place / "constraints.txt").write_text(pins, encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pip += ["--no-compile", "-c", str(place / "constraints.txt")]
    # torch first and alone, so that the pinned build is there before anything asks for another
    for wanted in (["pip", "setuptools", "wheel"], ["torch"], ["-e", str(ROOT)]):
        step(*pip, *wanted)
    step(*pip, f"{peer.name}=={peer.version}")
    mark.write_text(state, encoding="utf-8")
    return python


def step(*command: str) -> None:
    """Runs one step of an installation."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(plain(str(error))) from None
    if done.returncode:
        raise NotInstalled(reason(done.stderr) or f"exit code {done.returncode}")


def reason(stderr: str) -> str:
    """The last line that says what went wrong; pip marks its own with ERROR."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("ERROR:")]
    return plain((marked or lines or [""])[-1].removeprefix("ERROR:").strip())


def plain(text: str) -> str:
    """One line without addresses and paths of this machine."""
    text = re.sub(r"\w+://\S+", "(address)", " ".join(text.split()))
    return re.sub(r"(?<![\w.])(?:/[\w.+@~-]+){2,}/?", "(path)", text)
