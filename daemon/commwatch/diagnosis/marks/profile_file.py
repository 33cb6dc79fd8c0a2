"""Reads a profile: one of ours by its name, or a site's own from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commwatch.config.settings import Rate, Section
from commwatch.config.yaml_file import YamlDocument, decode, read_yaml
from commwatch.diagnosis.estimate.step import STRATEGIES, StrategyName
from commwatch.diagnosis.marks.mark import Mark
from commwatch.diagnosis.marks.profiles import PROFILES, Profile
from commwatch.diagnosis.marks.table import ALL_REDUCE_7B
from commwatch.errors import UsageError
from commwatch.units import parse_parameters


class _Own(Section, frozen=True, kw_only=True):
    """A profile of a site; see ``Profile``."""

    parameters: int | str
    active_parameters: int | str = ""
    trainable: int | str = ""
    strategy: StrategyName
    tokens: int
    hidden: int
    layers: int
    experts_per_token: int = 0
    all_reduce: Rate | None = None


def profile_of(name_or_file: str) -> Profile:
    """A profile.

    Raises:
        UsageError: there is none of this name, and no such file.
        ConfigError: the file cannot be read, or a value of it cannot be used.
    """
    if name_or_file in PROFILES:
        return PROFILES[name_or_file]
    path = Path(name_or_file)
    if not path.is_file():
        raise UsageError(f"no such profile: {name_or_file}; expected {', '.join(PROFILES)} or a YAML file")
    document = read_yaml(path)
    own = decode(document, _Own)
    parameters = _count(document, "parameters", own.parameters)
    active = _count(document, "active_parameters", own.active_parameters) if own.active_parameters else parameters
    if active > parameters:
        raise document.error(("active_parameters",), f"expected at most the parameters, {own.parameters}")
    trainable = _count(document, "trainable", own.trainable) if own.trainable else None
    if trainable is not None and trainable > parameters:
        raise document.error(("trainable",), f"expected at most the parameters, {own.parameters}")
    for key in ("tokens", "hidden", "layers"):
        if getattr(own, key) < 1:
            raise document.error((key,), f"expected 1 or more, got {getattr(own, key)}")
    if own.experts_per_token < 0:
        raise document.error(("experts_per_token",), f"expected 0 or more, got {own.experts_per_token}")
    return Profile(
        name=path.stem,
        parameters=parameters,
        active_parameters=active,
        trainable=trainable,
        strategy=own.strategy,
        tokens=own.tokens,
        hidden=own.hidden,
        layers=own.layers,
        experts_per_token=own.experts_per_token,
        all_reduce=None if own.all_reduce is None else _mark(path, own.all_reduce),
        model=f"{path}, {STRATEGIES[own.strategy].label}",
    )


def _count(document: YamlDocument, key: str, count: int | str) -> int:
    try:
        return parse_parameters(str(count))
    except ValueError as error:
        raise document.error((key,), str(error)) from error


def _mark(path: Path, figure: float) -> Mark:
    return replace(ALL_REDUCE_7B, name=f"all_reduce_{path.stem}", figure=figure, source=str(path))
