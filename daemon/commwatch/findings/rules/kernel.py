"""The kernel log and the driver's events: Xids of GPUs, SXids of NVSwitches, and lines without a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import SEVERITIES, Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of, nvswitch_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Rule, RuleSet
from commwatch.node.xids import Meaning, meanings
from commwatch_exporters.node.model import Daemon, Gpu, NvSwitch
from commwatch_exporters.node.parts import KeyedColumn

_Kind = TypeVar("_Kind", Gpu, NvSwitch)
_Event: TypeAlias = tuple[Evidence, Meaning | None]
"""One kind of event, and its meaning if that is known."""

_OF_XIDS = (Gpu.xids, Gpu.xids_nonfatal, Gpu.xids_fatal)
_OF_SXIDS = (NvSwitch.sxids, NvSwitch.sxids_nonfatal, NvSwitch.sxids_fatal)
_EVENTS = (*_OF_XIDS, *_OF_SXIDS, Gpu.kernel_log_messages)

FABRIC_FAILED: Mapping[str, str] = {
    "74": "NVLink error",
    "79": "GPU has fallen off the bus",
    "136": "NVLink training failed",
    "144": "NVLink 5 SAW error",
    "145": "NVLink 5 RLW error",
    "146": "NVLink 5 TLW error",
    "147": "NVLink 5 TREX error",
    "148": "NVLink 5 control error",
    "149": "NVLink 5 NETIR error",
    "150": "NVLink 5 MSE error",
    "155": "NVLink software-defined error",
    "167": "PCIe fatal timeout",
    "173": "C2C link failed",
}
"""Xids after which a path between GPUs has failed; the critical ones of the fabric in ``data/xid.yaml``."""

FATAL_BY_LINE: frozenset[str] = frozenset({"144", "145", "146", "147", "148", "149", "155"})
"""Of ``FABRIC_FAILED`` those that are fatal only where their line in the kernel log says so. NVIDIA's Xid catalogue has
both kinds of most of them, no fatal one of 147 and 148, and a link that goes to sleep reports 155. A link or GPU that
has failed has a finding of its own."""

ENDS_WORK: frozenset[str] = frozenset({"RESET_GPU", "RESTART_BM", "RESTART_VM", "WORKFLOW_XID_48"})
"""Immediate actions of NVIDIA's Xid catalogue by which the GPU or the node must be reset: what ran there has ended. An
error of the memory is one too, though only the program must be started again (``RESTART_APP``)."""

GPU_FAILED: Mapping[str, str] = {
    "46": "GPU stopped processing",
    "48": "double-bit ECC error",
    "62": "PMU halted",
    "64": "row remapping failed",
    "94": "contained memory error",
    "95": "uncontained memory error",
    "109": "context switch timeout",
    "110": "security fault",
    "119": "GSP timeout",
    "120": "GSP error",
    "140": "unrecovered ECC error",
    "143": "GPU initialisation failed",
    "151": "key rotation error",
    "156": "resource retired",
    "158": "fatal timeout",
    "175": "timeout of the memory subsystem",
}
"""Xids after which a GPU or its driver has failed, or work on it has ended: the other critical ones of
``data/xid.yaml``, and those whose action is one of ``ENDS_WORK``."""

SWITCH_FAILED: frozenset[str] = frozenset(
    {"10003", "11001", "11009", "11013", "11018", "11019", "11020", "12001", "12002", "12020", "12022", "12024"}
    | {"12025", "12026", "12027", "12030", "12031", "12032", "14017", "15001", "20034", "22003", "22011", "22012"}
    | {f"{sxid}" for sxid in range(23001, 23018)}
    | {"24004", "24005", "24006", "24007"}
)

"""SXids by which traffic of a link or a switch stops: the critical ones of ``data/sxid.yaml``."""

SWITCH_WARNS: frozenset[str] = frozenset({"10001", "10002", "10004", "11004", "12028", "19084"})
"""SXids that should be investigated: the warnings of ``data/sxid.yaml``."""

_LINE_COMES_WITHIN = 10.0
"""Seconds: the driver reports an Xid by an event as well, and only the line of the kernel log shows that it was not
fatal. Both are read every 2 s."""

_OWN_STEP = frozenset({"xid_nonfatal"})
"""Codes whose own next step holds, whatever the number is."""

MESSAGE_CODES: Mapping[str, tuple[str, str]] = {
    "fallen_off_bus": ("xid_fabric", "fallen off the bus"),
    "gsp_errors_limited": ("xid_gpu", "GSP errors are no longer all logged"),
    "nvlink_detection_failed": ("xid_gpu", "NVLink detection failed"),
}
"""By line of the kernel log without a number: its finding, and its name."""
OFF_BUS_XID = "79"
"""The Xid that is missing where a line says that the GPU has fallen off its bus: no reset reaches it."""


def driver_errors(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs of which the driver reported, within the last hour, that a path or the GPU itself has failed."""
    evidence_of: dict[tuple[str, Component], list[_Event]] = {}
    harmless, fatals = _marked(facts, Gpu.xids_nonfatal), _marked(facts, Gpu.xids_fatal)
    for gpu, xid, count in facts.rises_keyed(Gpu.xids, HOUR):
        fatal = min(fatals.get((gpu, xid), 0.0), count)
        is_known = xid in FABRIC_FAILED or xid in GPU_FAILED
        if not (fatal or is_known):
            continue
        nonfatal = min(harmless.get((gpu, xid), 0.0), count - fatal)
        if fatal:
            # The driver's own word: no list of numbers that programs can cause takes it back, so it has no event.
            code = "xid_fabric" if xid in FABRIC_FAILED else "xid_fatal"
            evidence, meaning = _counted(facts, Gpu.xids_fatal, gpu, xid, fatal, ", called fatal by the driver")
            evidence_of.setdefault((code, gpu_of(gpu)), []).append(
                (msgspec.structs.replace(evidence, event=""), _if_critical(meaning))
            )
        if is_known and count > nonfatal + fatal:
            code = "xid_gpu" if xid in GPU_FAILED else "xid_fabric"
            note = ""
            if xid in FATAL_BY_LINE:
                code, note = "xid_nonfatal", ", not known whether fatal"
            evidence, meaning = _counted(facts, Gpu.xids, gpu, xid, count - nonfatal - fatal, note)
            evidence_of.setdefault((code, gpu_of(gpu)), []).append((evidence, meaning))
        if is_known and nonfatal:
            evidence, meaning = _counted(facts, Gpu.xids_nonfatal, gpu, xid, nonfatal, ", not fatal")
            evidence_of.setdefault(("xid_nonfatal", gpu_of(gpu)), []).append((evidence, meaning))
    for gpu, message, count in facts.rises_keyed(Gpu.kernel_log_messages, HOUR):
        if message in MESSAGE_CODES:
            code, words = MESSAGE_CODES[message]
            at = facts.last_rise(Gpu.kernel_log_messages, gpu, message)
            evidence = Evidence(f"kernel log: {words}{_when(facts, at)}", count, "events", last_at=at)
            advised = meanings("xid")[int(OFF_BUS_XID)] if message == "fallen_off_bus" else None
            evidence_of.setdefault((code, gpu_of(gpu)), []).append((evidence, advised))
    yield from _matches(evidence_of)


def _counted(
    facts: Facts, column: KeyedColumn[_Kind], device: _Kind, number: str, count: float, note: str = ""
) -> _Event:
    """An Xid or SXid with its name and the time of the last one."""
    kind: Literal["xid", "sxid"] = "xid" if isinstance(device, Gpu) else "sxid"
    known = meanings(kind).get(int(number)) if number.isdigit() else None
    name = f": {known.name}" if known else ""
    at = facts.last_rise(column, device, number)
    what = f"{'Xid' if kind == 'xid' else 'SXid'} {number}{name}{note}{_when(facts, at)}"
    meaning = known.meaning if known else ""
    return Evidence(what, count, "events", event=f"{kind} {number}", last_at=at, meaning=meaning), known


def _if_critical(meaning: Meaning | None) -> Meaning | None:
    """The meaning of an event that the driver calls fatal; None where its advice is for the usual, lesser case."""
    return meaning if meaning is not None and meaning.severity == "critical" else None


def _when(facts: Facts, at: float | None) -> str:
    return f" {facts.lately(HOUR)}" if at is None else ""


def _matches(found: Mapping[tuple[str, Component], Sequence[_Event]]) -> Iterable[Match]:
    """Matches whose next step is the advice for the event with the most severe meaning."""
    for (code, component), events in found.items():
        known = [] if code in _OWN_STEP else [meaning for _, meaning in events if meaning is not None]
        worst = min(known, key=lambda one: SEVERITIES.index(one.severity), default=None)
        evidence = tuple(evidence for evidence, _ in events)
        yield Match(code, component, evidence, next_step=worst.cure if worst else "")


def _marked(facts: Facts, column: KeyedColumn[_Kind]) -> dict[tuple[_Kind, str], float]:
    """How many events of the last hour the driver called fatal, or not fatal, by device and number."""
    return {(device, number): rise for device, number, rise in facts.rises_keyed(column, HOUR)}


def switch_errors(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """NVSwitches that reported, within the last hour, a failed link or an error to investigate.

    The same number can be fatal and not, and a number of no list can be fatal; the driver's own word for each decides.
    """
    evidence_of: dict[tuple[str, Component], list[_Event]] = {}
    harmless, fatals = _marked(facts, NvSwitch.sxids_nonfatal), _marked(facts, NvSwitch.sxids_fatal)
    for device, sxid, count in facts.rises_keyed(NvSwitch.sxids, HOUR):
        switch = nvswitch_of(device)
        called_fatal = min(fatals.get((device, sxid), 0.0), count)
        nonfatal = min(harmless.get((device, sxid), 0.0), count - called_fatal)
        fatal = count - nonfatal if sxid in SWITCH_FAILED else called_fatal
        if fatal:
            evidence, meaning = _counted(facts, NvSwitch.sxids, device, sxid, fatal)
            evidence_of.setdefault(("sxid_fatal", switch), []).append((evidence, _if_critical(meaning)))
        if (sxid in SWITCH_FAILED or sxid in SWITCH_WARNS) and count > fatal:
            evidence, meaning = _counted(facts, NvSwitch.sxids, device, sxid, count - fatal, ", not fatal")
            meaning = None if sxid in SWITCH_FAILED else meaning  # its advice is for the fatal ones
            evidence_of.setdefault(("sxid_warning", switch), []).append((evidence, meaning))
    yield from _matches(evidence_of)


def lost_records(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Whether the kernel log overwrote records before they were read."""
    for _, count in facts.rises(Daemon.kernel_log_losses, HOUR):
        evidence = Evidence(f"times that records were overwritten {facts.lately(HOUR)}", count)
        yield Match("kernel_log_lost", Component("log", "kernel", "kernel log"), (evidence,))


KERNEL = RuleSet(
    name="Kernel log",
    codes=(
        FindingCode(
            name="xid_fabric",
            title="The driver reports that a path of the GPU has failed",
            severity="critical",
            role="fault",
            meaning="The driver logged an Xid of NVLink, C2C or PCIe. Jobs on the path may fail or hang; other ranks "
            "see NCCL timeouts.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU; if that fails, power "
            "cycle the node.",
            alert="CommwatchXidFabric",
            opens_after=_LINE_COMES_WITHIN,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="xid_fatal",
            title="The driver calls an error of the GPU fatal",
            severity="critical",
            role="fault",
            meaning="The line of an Xid in the kernel log says Fatal. Jobs on the GPU or its links may fail or hang, "
            "whatever is known of the number.",
            next_step="Drain the node; once it is free, run nvidia-bug-report.sh, then commwatch pause and reset "
            "the GPU; if that fails, power cycle the node.",
            alert="CommwatchXidFatal",
            opens_after=_LINE_COMES_WITHIN,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="xid_gpu",
            title="Driver reports a failed GPU",
            severity="warning",
            role="fault",
            meaning="The GPU, its firmware or its memory had an error that can end jobs. Other ranks time out.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU. Again: run field "
            "diagnostics.",
            alert="CommwatchXidGpu",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="xid_nonfatal",
            title="Driver reports an NVLink error that it does not call fatal",
            severity="warning",
            role="fault",
            meaning="An NVLink 5 unit had an error, and its line in the kernel log calls it nonfatal or was not read. "
            "A link or GPU that has failed has a finding of its own.",
            next_step="Run journalctl -k -g Xid: it names the link. Leave the node in service; if it happens again on "
            "this link, drain the node; once it is free, run commwatch pause and reset the GPU.",
            alert="CommwatchXidNonfatal",
            opens_after=_LINE_COMES_WITHIN,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="sxid_fatal",
            title="An NVSwitch reports that a link has failed",
            severity="critical",
            role="fault",
            meaning="A link or the whole switch has stopped. NVLink jobs may fail or hang; the link's GPU shows Xid "
            "74.",
            next_step="Drain the node; once it is free, run commwatch pause and reset all GPUs and NVSwitches "
            "together. Again: call the vendor.",
            alert="CommwatchSxidFatal",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="sxid_warning",
            title="NVSwitch reports a warning",
            severity="warning",
            role="fault",
            meaning="The switch ran hot, refused a packet, answered late, or had a nonfatal link error. Jobs that "
            "use NVLink here may stall.",
            next_step="Leave the node in service; if it happens again, drain the node; once it is free, run commwatch "
            "pause and reset all GPUs and NVSwitches together. Too hot: check fans and air inlet. Packet refused: "
            "check the fabric manager's partitions.",
            alert="CommwatchSxidWarning",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="kernel_log_lost",
            title="Kernel log records were lost",
            severity="info",
            role="state",
            meaning="The kernel overwrote unread records; Xids may be uncounted. Jobs go on.",
            next_step="Run journalctl -k and look for what floods the log; without one, enlarge the buffer "
            "(log_buf_len).",
            alert="CommwatchKernelLogLost",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(
            driver_errors,
            ("xid_fabric", "xid_fatal", "xid_gpu", "xid_nonfatal"),
            reads=(*_OF_XIDS, Gpu.kernel_log_messages),
        ),
        Rule(switch_errors, ("sxid_fatal", "sxid_warning"), reads=_OF_SXIDS),
        Rule(lost_records, ("kernel_log_lost",), reads=(Daemon.kernel_log_losses,)),
    ),
    windows=dict.fromkeys((*_EVENTS, Daemon.kernel_log_losses), HOUR),
    events=frozenset(_EVENTS),
)
