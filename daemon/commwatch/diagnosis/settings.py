"""The settings branch: NCCL settings of running jobs, settings that guides propose, and limits of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import msgspec

from commwatch.config.yaml_file import read_shipped
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.infiniband import ports_of
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.results import probes_of
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.jobs.settings.records import AuditRecord, SettingRemark
from commwatch.jobs.settings.variables import known_variables, parse_version, read_by
from commwatch.probes.by_hand.trial import SettingGain, SettingTrial
from commwatch.units import format_bytes, format_seconds

_AREAS: dict[str, frozenset[str]] = {
    "paths between GPUs": frozenset({
        "p2p_off", "p2p_level_low", "old_style_level", "shm_off", "nvls_off", "cumem_off", "node_nvlink_off",
    }),
    "network and adapters": frozenset({
        "interface_missing", "interface_down", "interface_unsuited", "rdma_off", "adapter_missing", "adapter_prefix",
        "adapter_inactive", "adapters_few", "gdr_off", "gid_fixed", "gid_missing", "rdma_timeout", "rdma_retries",
        "ordering_strict", "adaptive_routing_off", "ports_not_merged", "pxn_off", "cross_nic",
    }),
    "buffers, channels and threads": frozenset({
        "buffer_small", "channels_few", "channels_many", "many_queue_pairs", "socket_threads", "connect_at_start",
    }),
    "algorithm and protocol": frozenset({"algorithm_forced", "protocol_forced", "topology_given", "launch_mode"}),
    "names, files and values": frozenset({
        "never_read", "old_name", "removed", "not_in_version", "misspelt", "unknown_name", "malformed_line",
        "file_not_read", "shadowed", "unreadable_number", "not_accepted", "out_of_range", "file_missing",
        "environment_plugin",
    }),
    "ranks of one job": frozenset({"ranks_differ", "namespaces_differ"}),
}  # fmt: skip
"""Subjects of the audit's remarks; all other remarks belong to the rest."""
_REST = "messages, checks and start"
AREAS = (*_AREAS, _REST)

_check = partial(Check, "settings")
_SOURCE = "docs/using/nccl-settings.md"
_USER_GUIDE = "NCCL user guide, troubleshooting"
_SHARED_MEMORY = 2**30
"""Bytes of ``--shm-size=1g``, which the user guide gives a container."""
_SEEN_HERE = "as this command sees it; a job in a container, or of a scheduler, may have another"


def area_of(code: str) -> str:
    """The subject of a remark."""
    return next((area for area, codes in _AREAS.items() if code in codes), _REST)


def settings(known: Known) -> Iterator[Check]:
    yield from _of_jobs(known)
    yield from proposal_checks(known)
    yield from _of_host(known)


def _of_jobs(known: Known) -> Iterator[Check]:
    what = "NCCL settings of running jobs"
    audit = None if known.settings is None else known.settings.audit
    if audit is None:
        detail = "the processes on the GPUs are not known now, or were not audited yet"
        yield _check(what, "not measured", detail=detail)
        return
    if not audit.read and not audit.unread_count:
        yield _check(what, "does not apply", detail="no process is on a GPU")
        return
    yield _reading(what, audit)
    remarks = sorted(audit.remarks, key=lambda one: AREAS.index(area_of(one.code)))
    yield from (_remark(known, one) for one in remarks)
    if audit.remarks_left_out:
        detail = f"{audit.remarks_left_out} more remarks, none graver than these"
        yield _check("further settings", "notice", detail=detail)
    elif audit.read:
        yield from _clean(audit.read, remarks)


def _reading(what: str, audit: AuditRecord) -> Check:
    """Whether all processes were read: one that was not is not known to be clean."""
    of_all = f"{audit.read} of {audit.read + audit.unread_count} processes read"
    if not audit.unread_count:
        return _check(what, "passed", measured=of_all, required="all", source=_SOURCE)
    reasons = Counter(one.reason.replace("_", " ") for one in audit.unread)
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    detail = f"nothing is known of {audit.unread_count}" + (f" ({why})" if why else "")
    return _check(
        what, "not measured", measured=of_all, required="all", source=_SOURCE,
        detail=f"{detail}; docs/using/nccl-settings.md says what the daemon needs to read them",
    )  # fmt: skip


def _remark(known: Known, remark: SettingRemark) -> Check:
    processes = f"{remark.process_count} process{'' if remark.process_count == 1 else 'es'}"
    check = _check(
        f"{remark.variable} ({area_of(remark.code)})", "notice", processes,
        f"{remark.severity} ({remark.code.replace('_', ' ')})", "harmless", _SOURCE, remark.words, remark.next_step,
    )  # fmt: skip
    found = judged(check, known.matched, "settings", (f"setting/{remark.variable}/{remark.code}",))
    # The audit explains this setting; the finding says that one is set.
    return msgspec.structs.replace(check, verdict=found.verdict)


def _clean(read: int, remarks: Sequence[SettingRemark]) -> Iterator[Check]:
    noted = {area_of(one.code) for one in remarks}
    for area in AREAS:
        if area not in noted:
            measured = f"nothing to say of {read} process{'' if read == 1 else 'es'}"
            yield _check(f"settings: {area}", "passed", measured=measured, source=_SOURCE)


def _of_host(known: Known) -> Iterator[Check]:
    yield _locked_memory(known)
    yield _shared_memory(known)


def _locked_memory(known: Known) -> Check:
    what = "memory that a process may pin (ulimit -l)"
    if not ports_of(known.facts.node):
        return _check(what, "does not apply", detail="no RDMA adapter is known, which would need it")
    limit = None if known.host is None else known.host.locked_memory
    if limit is None:
        return _check(what, "not measured", required="unlimited", source=_USER_GUIDE, detail=_not_read(known))
    if limit == float("inf"):
        return _check(what, "passed", "", "unlimited", "unlimited", _USER_GUIDE, _SEEN_HERE)
    return _check(
        what, "notice", "", format_bytes(limit), "unlimited", _USER_GUIDE,
        f"{_SEEN_HERE}; adapters pin the buffers, and beyond the limit NCCL stops with ibv_reg_mr failed",
        "Set memlock to unlimited in limits.conf, in the unit of the scheduler's daemon, and for containers with "
        "--ulimit memlock=-1.",
    )  # fmt: skip


def _shared_memory(known: Known) -> Check:
    what = "size of /dev/shm"
    if len(known.facts.derived(gpus_of)) < 2:
        return _check(what, "does not apply", detail="there are not two GPUs")
    size = None if known.host is None else known.host.shared_memory
    required = f"at least {format_bytes(_SHARED_MEMORY)}"
    if size is None:
        detail = _not_read(known) if known.host is None else "it is not mounted where this command runs"
        return _check(what, "not measured", required=required, source=_USER_GUIDE, detail=detail)
    measured = format_bytes(size)
    free = known.host.shared_memory_free if known.host is not None else None
    if free is not None:
        measured += f", {format_bytes(free)} free"
    if size >= _SHARED_MEMORY:
        return _check(what, "passed", "", measured, required, _USER_GUIDE, _SEEN_HERE)
    return _check(
        what, "notice", "", measured, required, _USER_GUIDE,
        f"{_SEEN_HERE}; where it is full NCCL stops with failed to extend /dev/shm",
        "Give containers --shm-size=1g or more.",
    )  # fmt: skip


def _not_read(known: Known) -> str:
    simulated = known.snapshot.simulated is not None
    return "a simulated node has no such limit" if simulated else "it was not read"


# --- the settings that public guides propose for a profile: whether NCCL reads them here, and what they gained ---

_FILE = Path(__file__).resolve().parents[1] / "data/nccl_proposals.yaml"


class Proposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``data/nccl_proposals.yaml``, whose head says what the fields mean."""

    variable: str
    value: str
    profiles: tuple[str, ...]
    source: str
    between_nodes: bool = False


class Proposals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
            check = _proposed(row, known.trials, version, known.snapshot.time)
            what = f"{profile.name}: proposed {row.variable}={row.value}"
            yield msgspec.structs.replace(check, what=what, source=all_of_them.sources[row.source])


def _proposed(row: Proposal, trials: tuple[SettingTrial, ...], version: str, now: float) -> Check:
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
