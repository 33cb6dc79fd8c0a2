"""The profiles: a model that is to be trained, what it needs, and what a step of it takes on measured bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from commwatch.config.settings import Rate, Section
from commwatch.config.yaml_file import YamlDocument, decode, read_yaml
from commwatch.diagnosis.estimate.step import (
    STRATEGIES,
    StrategyName,
)
from commwatch.diagnosis.marks.floors import SiteFloors
from commwatch.diagnosis.marks.table import ALL_REDUCE_7B, ALL_REDUCE_235B, Mark
from commwatch.errors import UsageError
from commwatch.units import format_count, parse_parameters

Purpose: TypeAlias = Literal["training", "inference", "lora"]
"""The job's use of the model: train all of it or the part that the profile names, serve it, or train adapters (a
hundredth of the parameters if the profile names none)."""
WAITING_MOST = 0.5
"""Share of a step. Beyond it GPUs wait for longer than they compute, and half of them alone would do as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    parameters: int
    active_parameters: int
    """Of one token; less than all of a mixture of experts."""
    trainable: int | None = None
    """Those that are trained, such as LoRA adapters; None: all."""
    strategy: StrategyName
    """Of the GPUs of one node: the least that they send to each other for this model."""
    tokens: int
    """Of a micro-batch; one a step."""
    hidden: int
    layers: int
    experts_per_token: int = 0
    """See ``Training``."""
    all_reduce: Mark | None = None
    """None: the step alone is judged. None is published for 30B and 70B: that for 7B is the least that they need."""
    model: str
    """Whose sizes these are."""

    @property
    def weight_bytes(self) -> int:
        """All parameters in bf16."""
        return 2 * self.parameters

    @property
    def job(self) -> str:
        """``7B parameters, DDP, a micro-batch of 4096 tokens``."""
        active = (
            "" if self.active_parameters == self.parameters else f" ({format_count(self.active_parameters)} active)"
        )
        strategy = STRATEGIES[self.strategy].label
        return f"{format_count(self.parameters)} parameters{active}, {strategy}, a micro-batch of {self.tokens} tokens"


PROFILES: dict[str, Profile] = {
    one.name: one
    for one in (
        Profile(
            name="7b",
            parameters=7_000_000_000,
            active_parameters=7_000_000_000,
            strategy="ddp",
            tokens=4096,
            hidden=4096,
            layers=32,
            all_reduce=ALL_REDUCE_7B,
            model="a dense 7B model, gradients in bf16; ZeRO-1 sends as much, ZeRO-3 and FSDP half as much again",
        ),
        Profile(
            name="30b",
            parameters=32_500_000_000,
            active_parameters=32_500_000_000,
            strategy="tp",
            tokens=4096,
            hidden=6656,
            layers=60,
            all_reduce=ALL_REDUCE_7B,
            model="LLaMA 30B, its layers split over the GPUs of a node",
        ),
        Profile(
            name="70b",
            parameters=70_600_000_000,
            active_parameters=70_600_000_000,
            strategy="tp",
            tokens=4096,
            hidden=8192,
            layers=80,
            all_reduce=ALL_REDUCE_7B,
            model="Llama 3 70B, its layers split over the GPUs of a node",
        ),
        Profile(
            name="235b",
            parameters=235_000_000_000,
            active_parameters=22_000_000_000,
            strategy="tp",
            tokens=4096,
            hidden=4096,
            layers=94,
            experts_per_token=8,
            all_reduce=ALL_REDUCE_235B,
            model="Qwen3-235B-A22B, its layers and experts split over the GPUs of a node",
        ),
    )
}
"""By name."""


class Asked(NamedTuple):
    """The profiles that a node is compared with."""

    profile: Profile | None = None
    """The one that has to be met; None: those that a mark was published for are shown, and none has to be."""
    alone_seconds: float | None = None
    """Seconds for which one GPU alone computes on a micro-batch of the user's own; None: computed from the profile and
    the GPU."""
    purpose: Purpose = "training"
    """The job's use of the model."""
    floors: SiteFloors | None = None
    """Those of the site; None where it has none."""

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Those to be shown."""
        if self.profile is not None:
            return (self.profile,)
        return (PROFILES["7b"], PROFILES["235b"])


ALL_PROFILES = Asked()
"""The profiles that a diagnosis shows if none is chosen."""


# --- a site's own profile, from a file ---


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
