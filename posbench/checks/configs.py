"""Checks of what a class declares about itself."""

import dataclasses
import re

from posbench.checks.base import Measured, check, faults
from posbench.checks.subjects import Encoded, Rule, Scheme, Subject
from posbench.encodings.base import HOOKS

#: what counts as the name of a source: an arXiv number, a DOI or an address
SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}|(doi:)?10\.\d{4,}/\S+|(https?://)?\w+(\.\w+)+/\S+")


@check("posenc", "rescale", "positions")
def builds(subject: Subject) -> Measured:
    """Can be made without options"""
    return faults([subject.broken] if subject.broken else [])


@check("posenc", "rescale", "positions")
def paper(subject: Subject) -> Measured:
    """Names its paper, the docstring too

    A class with an empty `paper` says that it has none: then a docstring is enough.
    """
    text = " ".join((subject.cls.__doc__ or "").split())
    found = [] if text else ["no docstring"]
    declared = subject.cls.paper
    if not declared:
        return faults(found, "declares that it has no paper")
    named = SOURCE.match(declared)
    if named is None:
        found.append(f"paper = {declared!r} is no arXiv number, DOI or address")
    elif named[0] not in text:
        found.append(f"the docstring lacks {named[0]}")
    return faults(found)


@check("posenc", "rescale", "positions")
def config(subject: Subject) -> Measured:
    """Config comes back from YAML unchanged"""
    from omegaconf import OmegaConf

    given = subject.cls.Config()
    if isinstance(subject, Rule):
        given = subject.make().config
    stored = OmegaConf.to_yaml(OmegaConf.structured(given))
    merged = OmegaConf.merge(OmegaConf.structured(subject.cls.Config), OmegaConf.create(stored))
    back = OmegaConf.to_object(merged)
    fields = [f.name for f in dataclasses.fields(given)]
    changed = [f for f in fields if getattr(back, f) != getattr(given, f)]
    return faults([f"{f} comes back as {getattr(back, f)!r}" for f in changed])


@check("posenc", "rescale", "positions")
def described(subject: Subject) -> Measured:
    """Bears its file's name; has a family"""
    cls = subject.cls
    names = {"name": cls.name, "Config().name": cls.Config().name}
    found = [f"{key} is {name!r}" for key, name in names.items() if name != subject.name]
    if not cls.family:
        found.append("family is empty")
    return faults(found)


@check("posenc")
def learnable(subject: Scheme) -> Measured:
    """Has parameters iff it says so"""
    count = sum(p.numel() for p in subject.encoding.parameters())
    declared = subject.encoding.learnable
    wrong = [f"learnable = {declared}"] if declared != (count > 0) else []
    return faults(wrong)


@check("posenc", when=lambda s: s.encoding.learnable)
def groups(subject: Scheme) -> Measured:
    """The optimizer gets each parameter once"""
    own = {id(p): name for name, p in subject.encoding.named_parameters()}
    given = subject.encoding.param_groups()
    listed = [id(p) for group in given for p in group["params"]]
    found = [
        f"{n} is listed {listed.count(i)} times" for i, n in own.items() if listed.count(i) != 1
    ]
    found += ["lists what is not its own"] if set(listed) - set(own) else []
    found += ["lr_factor is not above 0" for g in given if not g["lr_factor"] > 0]
    found += ["weight_decay is below 0" for g in given if not g["weight_decay"] >= 0]
    return faults(found)


@check("posenc", "rescale")
def hooks(subject: Encoded) -> Measured:
    """Declares hooks that there are"""
    own = subject.encoding.hooks
    found = [f"{hook} is no hook" for hook in sorted(own - set(HOOKS))]
    return faults(found, ", ".join(hook for hook in HOOKS if hook in own) or "none")
