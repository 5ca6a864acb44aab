"""What a call of `posbench bench` asks for: parts, schemes, and the settings of each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posbench import jobs, launch, registry
from posbench.bench import ALL, HEEDED, PARTS
from posbench.data.targets import SHORTEST
from posbench.errors import ConfigError
from posbench.settings import EvalConfig, RunConfig, positive

#: test lengths of a bench that is not told any
LENGTHS = [128 * 2**k for k in range(8)]


@dataclass(frozen=True)
class Asked:
    """The words of the command line, sorted."""

    parts: tuple[str, ...]
    #: values of posenc=; None where it was not given
    schemes: list[str] | None
    #: overrides of training, without posenc=
    overrides: list[str]
    eval: EvalConfig

    def config(self, scheme: str | None) -> RunConfig:
        """Settings of a run of a scheme (None: of the default one)."""
        words = self.overrides + ([f"posenc={scheme}"] if scheme else [])
        ((cfg, preset),) = launch.train_configs(words, multirun=False)
        return jobs.run_config(cfg, preset)

    def prepared(self, scheme: str) -> jobs.Prepared:
        """The same with its data, checked as `posbench train` does."""
        ((cfg, preset),) = launch.train_configs(
            [*self.overrides, f"posenc={scheme}"], multirun=False
        )
        return jobs.prepare(cfg, preset)

    def for_reference(self) -> "Asked":
        """The same without options of a scheme, which the reference need not have."""
        kept = [w for w in self.overrides if not w.lstrip("+~").startswith("posenc.")]
        return Asked(self.parts, self.schemes, kept, self.eval)

    def for_scheme(self, scheme: str) -> "Asked":
        """What the options of schemes are meant for: everything but a reference of ours."""
        own = self.schemes is None or scheme in self.schemes
        return self if own else self.for_reference()

    @property
    def scheme_options(self) -> list[str]:
        """Overrides of what the schemes are made with."""
        return sorted(w for w in self.overrides if w.lstrip("+~").startswith("posenc."))


def read(words: Sequence[str]) -> Asked:
    """Sort the words of the command line; ConfigError names the one that is wrong."""
    named = [w for w in words if "=" not in w and not w.startswith(("~", "+"))]
    for word in named:
        if word not in (*PARTS, ALL):
            raise ConfigError(registry.unknown("WHAT", word, (*PARTS, ALL)))
    parts = tuple(p for p in PARTS if p in named or ALL in named or not named)
    given = [w for w in words if w not in named]
    schemes = _schemes([w for w in given if w.startswith("posenc=")])
    evals = [w for w in given if w.startswith("eval.")]
    for word in evals:
        if word.partition("=")[0] not in HEEDED:
            raise ConfigError(f"{word}: a bench heeds {', '.join(HEEDED)} of the evaluation")
    evaluation = launch.sweeps(evals)[0].eval
    evaluation.lengths = evaluation.lengths or LENGTHS
    positive({"eval.lengths": evaluation.lengths[0]}, least=SHORTEST)
    rest = [w for w in given if not w.startswith(("posenc=", "eval."))]
    return Asked(parts, schemes, rest, evaluation)


def _schemes(words: list[str]) -> list[str] | None:
    """Values of posenc=a,b,c or posenc=[a,b,c], each once and known."""
    if not words:
        return None
    given = [v.strip() for w in words for v in w.removeprefix("posenc=").strip("[]").split(",")]
    for name in given:
        if name not in registry.options("posenc"):
            raise ConfigError(registry.unknown("posenc", name, registry.options("posenc")))
    return list(dict.fromkeys(given))


def shape(config: RunConfig) -> dict[str, Any]:
    """What every measurement on a model depends on."""
    return {
        "model": asdict(config.model),
        "train.seq_len": config.train.seq_len,
        "positions": asdict(config.positions),
    }
