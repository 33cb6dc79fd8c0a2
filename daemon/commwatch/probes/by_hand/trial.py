"""A trial of NCCL settings: the same probes without and with them, in turn, and what the settings gain."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Literal

import msgspec

from commwatch.config.settings import Config, Probe
from commwatch.errors import CommwatchError, ExitCode, StateError, UsageError
from commwatch.jobs.settings.variables import known_variables
from commwatch.probes.by_hand.answer import SCHEMA_VERSION, Answer
from commwatch.probes.cycle.environment import OWN_NCCL_SETTINGS
from commwatch.probes.plan import CyclePlan, Measured
from commwatch.probes.rank_plan import Operation, Purpose
from commwatch.state.directory import StateDirectory, state_path
from commwatch.state.records import Count, Seconds, Timestamp, check_labels, check_unique, read_record

ROUNDS = 3
"""Cycles without and with them: what differs by chance differs between the rounds too."""
SMALLEST_GAIN = 0.05
"""A smaller one is noise."""
_WITH, _WITHOUT = "with", "without"
_STATE = "setting-trials"
_KEPT = 64
"""Trials, the newest."""
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]+)=(\S{1,200})")


class SettingGain(msgspec.Struct, frozen=True, kw_only=True):
    probe: str
    operation: Operation
    purpose: Purpose
    size_bytes: Count
    ranks: Count
    without_seconds: Seconds
    """Of one call, median over the rounds."""
    with_seconds: Seconds
    gain_percent: Annotated[float, msgspec.Meta(ge=-100, le=1e9)]
    """How much more is done in the same time with them; below 0: less."""
    word: Literal["faster", "slower", "same"]
    """same: less than 5 %, or no more than the rounds differ among themselves."""


class SettingTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The measured gains of NCCL settings on this node."""

    settings: dict[str, str]
    """As they were given."""
    taken_at: Timestamp
    """Seconds since 1970."""
    nccl_version: str
    gains: tuple[SettingGain, ...]

    def __post_init__(self) -> None:
        check_labels((*self.settings, *self.settings.values(), self.nccl_version, *(one.probe for one in self.gains)))
        steps = ((one.probe, one.operation, one.purpose, one.size_bytes, one.ranks) for one in self.gains)
        check_unique(steps, "step")


class TrialDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``commwatch probe --with --json``."""

    schema_version: int = SCHEMA_VERSION
    simulated_node: str
    """Name of the simulated node; empty for a real one."""
    trial: SettingTrial
    kept: bool
    """For ``commwatch diagnose --settings``, in the state directory."""
    probes: tuple[Answer, ...]
    """Every run, in order."""


class SettingTrials(msgspec.Struct, frozen=True):
    """The trials that are kept in the state directory."""

    trials: tuple[SettingTrial, ...] = ()
    """The oldest first."""


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """The settings of ``NCCL_ALGO=Ring``.

    Raises:
        UsageError: one is no setting of NCCL, or one that every probe has from commwatch.
    """
    known, settings = known_variables().variables, dict[str, str]()
    for text in texts:
        match = _SETTING.fullmatch(text)
        if match is None:
            raise UsageError(f"--with {text}: expected NAME=VALUE, such as NCCL_ALGO=Ring")
        name, value = match.groups()
        if name in OWN_NCCL_SETTINGS:
            raise UsageError(f"--with {text}: every probe has its own {name}")
        if name not in known or known[name].reader != "nccl":
            raise UsageError(f"--with {text}: NCCL reads no {name}; see docs/using/nccl-settings.md")
        if settings.setdefault(name, value) != value:
            raise UsageError(f"--with {text}: {name} is given twice")
    return settings


def trial_probes(probes: Mapping[str, Probe]) -> dict[str, Probe]:
    """Each probe ``ROUNDS`` times, without and with the settings in turn, by the name of its run."""
    return {
        name_of(name, number, tried=tried): probe
        for number in range(1, ROUNDS + 1)
        for name, probe in probes.items()
        for tried in (False, True)
    }


def name_of(name: str, number: int, *, tried: bool) -> str:
    """``all_reduce with, round 2``."""
    return f"{name} {_WITH if tried else _WITHOUT}, round {number}"


def tried(plan: CyclePlan, *, settings: Mapping[str, str]) -> CyclePlan:
    """The plan of one run with the settings, where its name says so.

    Raises:
        CommwatchError: it runs without NCCL.
    """
    if plan.backend == "gloo":
        raise CommwatchError(
            "--with: the probes of this node run with gloo, which NCCL settings do not change", ExitCode.NOT_KNOWN
        )
    if f" {_WITH}, round " not in plan.probe:
        return plan
    return msgspec.structs.replace(plan, settings=tuple(settings.items()))


def trial_of(settings: Mapping[str, str], names: Sequence[str], answers: Mapping[str, Answer]) -> SettingTrial:
    """The gains by the runs with and without the settings; steps that lack a round are left out."""
    gains: list[SettingGain] = []
    for name in names:
        without, with_them = (
            [answers[name_of(name, number, tried=tried)].rows for number in range(1, ROUNDS + 1)]
            for tried in (False, True)
        )
        for place, row in enumerate(without[0]):
            both = [[rows[place].seconds for rows in runs if len(rows) > place] for runs in (without, with_them)]
            if all(len(seconds) == ROUNDS for seconds in both):
                before, after = map(median, both)
                gains.append(
                    SettingGain(
                        probe=name, operation=row.operation, purpose=row.purpose, size_bytes=row.size_bytes,
                        ranks=len(row.members), without_seconds=before, with_seconds=after,
                        gain_percent=100 * (before / after - 1), word=_word(*both),
                    )
                )  # fmt: skip
    results = [one.result for one in answers.values() if isinstance(one.result, Measured)]
    return SettingTrial(
        settings=dict(settings),
        taken_at=max((one.result.finished_at for one in answers.values()), default=0.0),
        nccl_version=results[0].nccl_version if results else "",
        gains=tuple(gains),
    )


def _word(without: Sequence[float], with_them: Sequence[float]) -> Literal["faster", "slower", "same"]:
    gain = median(without) / median(with_them) - 1
    if gain >= SMALLEST_GAIN and max(with_them) < min(without):
        return "faster"
    return "slower" if gain <= -SMALLEST_GAIN and min(with_them) > max(without) else "same"


def known_trials(config: Config) -> tuple[SettingTrial, ...]:
    """Those of this node, the oldest first; none where they cannot be read."""
    try:
        known = read_record(state_path(config) / f"{_STATE}.json", SettingTrials)
    except StateError:
        return ()
    return () if known is None else known.trials


def keep_trial(config: Config, trial: SettingTrial) -> bool:
    """Keep a trial for ``commwatch diagnose --settings``; whether that was possible."""
    state = StateDirectory(state_path(config))
    try:
        known = state.restore(_STATE, SettingTrials, lambda kept: kept or SettingTrials())
        state.save(_STATE, SettingTrials((*known.trials, trial)[-_KEPT:]))
    except (OSError, StateError):
        return False
    return True
