"""The NCCL settings that public guides propose for a profile: whether NCCL reads them here, and what they gained."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from commwatch.config.yaml_file import read_shipped
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.results import probes_of
from commwatch.jobs.settings.variables import known_variables, parse_version, read_by
from commwatch.probes.by_hand.trial import SettingGain, SettingTrial
from commwatch.units import format_seconds

_FILE = Path(__file__).resolve().parents[1] / "data/nccl_proposals.yaml"


class Proposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``data/nccl_proposals.yaml``, whose head says what the fields mean."""

    variable: str
    value: str
    profiles: tuple[str, ...]
    source: str
    between_nodes: bool = False


class Proposals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    sources: dict[str, str]
    """Addresses by name."""
    proposals: tuple[Proposal, ...]


@cache
def known_proposals() -> Proposals:
    """All proposals, read when first needed."""
    return read_shipped(_FILE, Proposals)


def proposal_checks(known: Known) -> Iterator[Check]:
    """One check for each setting that is proposed for the requested profile; a setting that gained here is
    recommended."""
    profile, all_of_them = known.asked.profile, known_proposals()
    if profile is None:
        return
    versions = {probe.nccl_version for probe in probes_of(known.facts) if parse_version(probe.nccl_version)}
    version = versions.pop() if len(versions) == 1 else ""
    for row in all_of_them.proposals:
        if profile.name in row.profiles:  # a site's own profile has none
            check = _check(row, known.trials, version, known.snapshot.time)
            what = f"{profile.name}: proposed {row.variable}={row.value}"
            yield msgspec.structs.replace(check, what=what, source=all_of_them.sources[row.source])


def _check(row: Proposal, trials: tuple[SettingTrial, ...], version: str, now: float) -> Check:
    is_read, state = _state(row.variable, version)
    trial = next((one for one in reversed(trials) if one.settings == {row.variable: row.value} and one.gains), None)
    if not is_read:
        return Check("settings", "", "notice", "", state, detail="published, and without effect: leave it out")
    if trial is None:
        how = "only a measurement over two nodes" if row.between_nodes else "commwatch probe --with NAME=VALUE"
        detail = f"published, not measured here: {how} shows what it gains"
        return Check("settings", "", "published mark", "", state, detail=detail)
    ago = f"measured {format_seconds(max(0.0, now - trial.taken_at))} ago with NCCL {trial.nccl_version}; {state}"
    slower, faster = ([one for one in trial.gains if one.word == word] for word in ("slower", "faster"))
    if slower or not faster:
        measured = _gain_words(min(slower, key=_gain)) if slower else "no gain"
        return Check("settings", "", "notice", "", measured, detail=ago, next_step="Leave it out.")
    return Check(
        "settings", "", "notice", "", _gain_words(max(faster, key=_gain)), detail=ago,
        next_step=f"Set {row.variable}={row.value} for this job, and measure it again after an update of NCCL.",
    )  # fmt: skip


def _state(name: str, version: str) -> tuple[bool, str]:
    """Whether NCCL reads a name, and since when; a version that is not known reads all that none has given up."""
    variable = known_variables().variables.get(name)
    if variable is None or variable.reader != "nccl":
        return False, "no NCCL reads it"
    if version and read_by(variable, parse_version(version)):
        return True, f"NCCL {version} reads it" + (f" (since {variable.since})" if variable.since else "")
    if variable.until:
        return False, f"NCCL up to {variable.until} read it"
    if version:
        return False, f"NCCL {version} does not read it, {variable.since} and newer do"
    return True, f"read since NCCL {variable.since}" if variable.since else "NCCL reads it, since when is not known"


def _gain(gain: SettingGain) -> float:
    return gain.gain_percent


def _gain_words(gain: SettingGain) -> str:
    """``+12 % in all_reduce``."""
    return f"{gain.gain_percent:+.0f} % in {gain.operation}"
