"""The daemon itself: what it cannot read, what hangs, and numbers that it does not believe."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of, interface_of, of_daemon, port_of
from commwatch.findings.rules.counted import Found, matches
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Rule, RuleSet
from commwatch.node.starvation import LATE_SECONDS, STALL_RATIO, WAITED_SHARE
from commwatch.readings import LOST_REASONS, WORKER_REASONS
from commwatch_exporters.node.model import (
    Collector,
    Daemon,
    Driver,
    FindingRule,
    Gpu,
    Interface,
    Node,
    RdmaPort,
    Source,
    SourceCounter,
    UnreadDevice,
    Worker,
)

_HANGS = frozenset({"crashed", "deadline"})
"""Why a worker is replaced that did not do its work; the others are replaced on purpose."""
_BLANK, _STALE = 2, 3
_NAMES = {_BLANK: "blank", _STALE: "standing still"}

_STALLS = {
    "cpu": ("share of time that the daemon waited for a CPU", WAITED_SHARE),
    "memory_some": ("share of time in which some task waited for memory", STALL_RATIO),
    "memory_full": ("share of time in which all tasks waited for memory", STALL_RATIO),
}
"""In words, with the limit, by the label ``resource``."""

_OF_DRIVER = "nvml_"
"""How the collectors of the NVIDIA driver begin."""
_UNREAD_FOR = 300.0
"""Seconds, as ``device_unread_for_seconds`` of the alert."""
_WHY_UNREAD = "Run journalctl -u commwatch -g 'cannot be read': it says why. Without a reason there, restart commwatch."
"""The step for what is no GPU; at a file server that does not answer, a restart helps nothing."""

_SOURCE_UNREAD_FOR = 30.0
"""Seconds, as ``source_unread_for_seconds`` of the alert."""
PARTS_OF = {"pci": "PCIe devices", "rdma": "RDMA ports", "network": "network interfaces"}
"""By source, what it lists; the sources of ``lists_parts`` but for the driver, whose silence ``driver.py`` names."""

GPU_STATE_REASONS = LOST_REASONS | WORKER_REASONS | {"not_listed"}
"""Of these a GPU has a state, which has findings of its own."""

_STARTING_FOR = 60.0
"""Seconds: a driver may need as long after the node has started."""


def failing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Collectors that have not read everything for long, or never since the daemon started."""
    reasons: dict[Collector, list[Evidence]] = {}
    for collector, reason, count in facts.rises_keyed(Collector.errors, HOUR):
        what = f"failed readings in the last hour: {reason.replace('_', ' ')}"
        reasons.setdefault(collector, []).append(Evidence(what, count))
    limit = thresholds.collector_failing_for_seconds
    named = {device.collector for device, _, _ in facts.each_keyed(UnreadDevice.failing)}
    driver_fails = any(flag == 1 for _, _, flag in facts.each_keyed(Driver.unusable))
    for collector, success in facts.each(Collector.success):
        if success == 1:
            continue
        if collector.name in named or (driver_fails and collector.name.startswith(_OF_DRIVER)):
            continue  # a finding of its own says what fails
        last = collector.last_success_timestamp_seconds
        age = None if last is None else facts.now - last
        if age is not None and age < limit:
            continue
        evidence = Evidence("last time that all was read", "never since the daemon started")
        if age is not None:
            evidence = Evidence("since all was read", age, "seconds", limit, "collector_failing_for_seconds")
        component = of_daemon(collector.name, f"collector {collector.name}")
        yield Match("collector_failing", component, (evidence, *reasons.get(collector, ())))


def source_unread(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Sources that list parts of the node, and of which nothing current is known; of the driver see ``driver.py``."""
    for source, flag in facts.each(Source.unread):
        if flag == 1 and source.name in PARTS_OF:
            evidence = Evidence("parts without a current reading", PARTS_OF[source.name])
            yield Match("source_unread", of_daemon(source.name, f"source {source.name}"), (evidence,))


def unread(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Devices of which collectors do not read all that they should."""
    found: dict[Component, dict[str, list[str]]] = {}
    driver_fails = any(flag == 1 for _, _, flag in facts.each_keyed(Driver.unusable))
    silent = {gpu.identity[0] for gpu, _ in facts.each(Gpu.calls_failing_since)}
    for one, reason, _ in facts.each_keyed(UnreadDevice.failing):
        if driver_fails and one.collector.startswith(_OF_DRIVER):
            continue  # one fault of the driver, and not one of each GPU
        if one.collector.startswith(_OF_DRIVER) and (reason in GPU_STATE_REASONS or one.device in silent):
            continue
        found.setdefault(_unread_device(facts.node, one), {}).setdefault(reason, []).append(one.collector)
    for component, reasons in found.items():
        evidence = [
            Evidence(f"collectors that fail on it: {reason.replace('_', ' ')}", ", ".join(sorted(collectors)))
            for reason, collectors in sorted(reasons.items())
        ]
        next_step = "" if component.kind == "gpu" else _WHY_UNREAD
        yield Match("device_unread", component, tuple(evidence), next_step=next_step)


def _unread_device(node: Node, one: UnreadDevice) -> Component:
    """A device as its source names it."""
    name, _, number = one.device.partition(":")
    if one.collector.startswith(_OF_DRIVER):
        if name == "index":
            return Component("gpu", one.device, f"GPU{number}")
        return gpu_of(node.part(Gpu, one.device))
    if one.collector == "rdma" and number:
        return port_of(node.part(RdmaPort, name, number))
    if one.collector in ("network", "ethtool"):
        return interface_of(node.part(Interface, one.device))
    return of_daemon(f"{one.collector}/{one.device}", f"{one.collector} of {one.device}")


def stale(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Collectors that report no failure and whose data are old all the same."""
    for collector, when in facts.each(Collector.last_success_timestamp_seconds):
        interval = collector.interval_seconds
        if interval is None or collector.success != 1:
            continue
        age, by_interval = facts.now - when, thresholds.data_stale_intervals * interval
        key = "data_stale_seconds" if thresholds.data_stale_seconds > by_interval else "data_stale_intervals"
        limit = max(thresholds.data_stale_seconds, by_interval)
        if age > limit:
            component = of_daemon(collector.name, f"collector {collector.name}")
            yield Match("collector_stale", component, (Evidence("age of the data", age, "seconds", limit, key),))


OF_JOB_FILES = "jobs"
"""The worker that reads what jobs wrote: it opens no driver."""
_FILE_SERVER = (
    "journalctl -u commwatch -g 'left alone' names the path: see whether its file server answers. It reads files of "
    "jobs alone: the node needs no drain for it."
)


def stuck(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Workers with processes that missed their deadline and have not come back."""
    for worker, count in facts.each(Worker.stuck):
        if count:
            component = of_daemon(worker.name, f"worker {worker.name}")
            evidence = Evidence("processes that do not come back", count)
            step = _FILE_SERVER if worker.name == OF_JOB_FILES else ""
            yield Match("worker_stuck", component, (evidence,), next_step=step)


def restarting(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Workers that crashed or hung several times in an hour."""
    evidence_of: dict[Worker, list[Evidence]] = {}
    counts: dict[Worker, float] = {}
    for worker, reason, count in facts.rises_keyed(Worker.restarts, HOUR):
        if reason in _HANGS:
            counts[worker] = counts.get(worker, 0.0) + count
            evidence_of.setdefault(worker, []).append(Evidence(f"of these: {reason}", count))
    most = thresholds.worker_restarts_per_hour
    for worker, count in counts.items():
        if count > most:
            evidence = Evidence("times it was replaced in the last hour", count, "", most, "worker_restarts_per_hour")
            component = of_daemon(worker.name, f"worker {worker.name}")
            yield Match("worker_restarting", component, (evidence, *evidence_of[worker]))


def configuration(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Whether the configuration on disk was refused."""
    if facts.node.daemon.config_last_reload_successful == 0:
        evidence = Evidence("configuration on disk", "refused")
        yield Match("configuration_refused", of_daemon("configuration", "configuration"), (evidence,))


def clock(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Whether the wall clock stepped within the last hour."""
    for _, count in facts.rises(Daemon.clock_steps, HOUR):
        evidence = Evidence("steps of more than 2 s in the last hour", count)
        yield Match("clock_stepped", Component("node", ""), (evidence,))


def starved(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Whether the node is too short of CPU or memory to judge missed deadlines."""
    daemon = facts.node.daemon
    if daemon.starved != 1:
        return
    evidence = [
        Evidence(_STALLS[resource][0], ratio, "ratio", _STALLS[resource][1], "a limit of the daemon")
        for _, resource, ratio in facts.each_keyed(Daemon.stall_ratios)
        if resource in _STALLS
    ]
    if daemon.late_seconds is not None:
        evidence.append(
            Evidence("the daemon's last beat came late by", daemon.late_seconds, "seconds", LATE_SECONDS,
                     "a limit of the daemon")
        )  # fmt: skip
    missed = sum(count for _, reason, count in facts.rises_keyed(Collector.errors, HOUR) if reason == "starved")
    evidence.append(Evidence("readings not judged in the last hour", missed))
    yield Match("node_starved", Component("node", ""), tuple(evidence))


def rules(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Rules that failed within the last hour."""
    for rule, count in facts.rises(FindingRule.errors, HOUR):
        component = of_daemon(rule.name, f"rule {rule.name}")
        yield Match("rule_failing", component, (Evidence("looks that failed in the last hour", count),))


def unbelievable(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Devices with counters that are blank or do not move although they should."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for one, state in facts.each(SourceCounter.anomaly):
        if state in _NAMES:
            source, device = one.source, one.device
            # All links of a GPU together: they have it at once.
            whole = device.partition("/")[0] if source == "nvml" else device
            counters = found.setdefault((source, whole), {})
            what = f"places where {one.counter} is {_NAMES[int(state)]}"
            counters[what] = counters.get(what, 0) + 1
    evidence_of: Found = {}
    for (source, device), counters in found.items():
        evidence = [Evidence(what, places) for what, places in counters.items()]
        evidence_of.setdefault(_device(facts.node, source, device), []).extend(evidence)
    return matches("counters_not_believed", evidence_of)


def _device(node: Node, source: str, device: str) -> Component:
    """A device as ``counters_anomaly`` names it."""
    if source == "nvml":
        return gpu_of(node.part(Gpu, device))
    name, _, port = device.partition("/")
    return port_of(node.part(RdmaPort, name, port)) if port else interface_of(node.part(Interface, device))


DAEMON = RuleSet(
    name="The daemon itself",
    codes=(
        FindingCode(
            name="collector_failing",
            title="A collector does not read everything it should",
            severity="warning",
            role="state",
            meaning="Part of the node has not been read for minutes. Faults there are not seen.",
            next_step="Run as root: runuser -u commwatch -- commwatch check-config --runtime < /dev/kmsg: it says what "
            "cannot be read and why.",
            alert="CommwatchCollectorFailing",
            opens_after=_STARTING_FOR,
        ),
        FindingCode(
            name="source_unread",
            title="Parts of the node are not read any more",
            severity="critical",
            role="fault",
            meaning="Nothing has been read of these parts for more than 30 s. Whether they, and the jobs that use "
            "them, work is not known.",
            next_step="Run what reads these parts: sudo timeout 20 lspci -vv, timeout 20 cat "
            "/sys/class/infiniband/*/ports/*/state, or timeout 20 ip -s link. If it takes 20 s or more, drain the "
            "node; once it is free, reboot it; else restart commwatch.",
            alert="CommwatchSourceUnread",
            opens_after=_SOURCE_UNREAD_FOR,
        ),
        FindingCode(
            name="device_unread",
            title="Part of a device cannot be read",
            severity="warning",
            role="state",
            meaning="For 5 min calls or files of this device have failed while others are read, or an "
            "NVLink, PCIe link or RDMA port that was up has no state. Its faults are not seen; whether jobs on it "
            "suffer is not known.",
            next_step="Run journalctl -u commwatch -g 'cannot be read': it says why. If nvidia-smi -q -i ADDRESS of a "
            "GPU hangs or shows an error, drain the node; once it is free, run commwatch pause and reset the GPU. Else "
            "restart commwatch.",
            alert="CommwatchDeviceUnread",
            opens_after=_UNREAD_FOR,
        ),
        FindingCode(
            name="collector_stale",
            title="Collector data is old without a failure",
            severity="warning",
            role="state",
            meaning="A collector has not run for several of its intervals. Its values are old; jobs go on.",
            next_step="Run date -u on the node and on the host of Prometheus, and set the wrong clock; if they agree "
            "and the node has free CPUs (top), restart commwatch.",
            alert="CommwatchDataStale",
            opens_after=_STARTING_FOR,
        ),
        FindingCode(
            name="worker_stuck",
            title="A process of the daemon hangs in the kernel",
            severity="warning",
            role="state",
            meaning="A call to a driver has not returned, or one to a file server (worker jobs). Faults of the device "
            "are not seen, and jobs that use it may hang (journalctl -u commwatch -g 'left alone' names it).",
            next_step="Drain the node; kill no process in state D (see ps): it ends when the driver returns. If the "
            "call does not return, power cycle the node once it is free.",
            alert="CommwatchWorkerStuck",
        ),
        FindingCode(
            name="worker_restarting",
            title="Daemon process restarts repeatedly",
            severity="warning",
            role="state",
            meaning="It crashed or hung several times within an hour and was replaced. Readings have gaps; jobs go on.",
            next_step="Run journalctl -u commwatch -g worker: it names the reason. After a driver upgrade restart "
            "commwatch; else report it with commwatch diagnose --bundle FILE.",
            alert="CommwatchWorkerRestarting",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="configuration_refused",
            title="The configuration on disk is not in force",
            severity="warning",
            role="state",
            meaning="It was rejected; the daemon keeps the previous one. A restart would fail. Jobs go on.",
            next_step="Run commwatch check-config: it says what is wrong.",
            alert="CommwatchConfigReloadFailing",
        ),
        FindingCode(
            name="clock_stepped",
            title="Clock of the node stepped",
            severity="info",
            role="state",
            meaning="The wall clock stepped by more than two seconds. Times before or after that may be wrong.",
            next_step="Run timedatectl and chronyc tracking: they show why the time service steps the clock instead of "
            "slewing it.",
            alert="CommwatchClockStepped",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="node_starved",
            title="The node is starved of CPU or memory",
            severity="info",
            role="state",
            meaning="Processes of the daemon wait for CPU or memory. A missed deadline or a probe that cannot start is "
            "not judged meanwhile.",
            next_step="Find what uses the CPU or memory: systemd-cgtop, /proc/pressure, dmesg for the OOM killer.",
            opens_after=0.0,
        ),
        FindingCode(
            name="rule_failing",
            title="A rule of commwatch fails",
            severity="warning",
            role="state",
            meaning="A rule that detects faults failed. Its faults are unknown; jobs go on.",
            next_step="Run commwatch diagnose --bundle FILE and report it with FILE: it is a defect of commwatch.",
            alert="CommwatchRuleFailing",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="counters_not_believed",
            title="Unreliable counters",
            severity="info",
            role="state",
            meaning="A counter is blank, or does not change while another counts the same traffic. Derived values, "
            "such as utilisation, are unknown.",
            next_step="Update driver or firmware. Again: report it to the vendor.",
        ),
    ),
    rules=(
        Rule(
            failing,
            ("collector_failing",),
            reads=(Collector.success, Collector.last_success_timestamp_seconds),
            details=(Collector.errors, UnreadDevice.failing, Driver.unusable),
            thresholds=("collector_failing_for_seconds",),
        ),
        Rule(
            unread,
            ("device_unread",),
            reads=(UnreadDevice.failing, Driver.unusable, Gpu.calls_failing_since),
            details=(Gpu.info, RdmaPort.info, Interface.info),
        ),
        Rule(source_unread, ("source_unread",), reads=(Source.unread,)),
        Rule(
            stale,
            ("collector_stale",),
            reads=(Collector.success, Collector.last_success_timestamp_seconds, Collector.interval_seconds),
            thresholds=("data_stale_seconds", "data_stale_intervals"),
        ),
        Rule(stuck, ("worker_stuck",), reads=(Worker.stuck,)),
        Rule(restarting, ("worker_restarting",), reads=(Worker.restarts,), thresholds=("worker_restarts_per_hour",)),
        Rule(configuration, ("configuration_refused",), reads=(Daemon.config_last_reload_successful,)),
        Rule(clock, ("clock_stepped",), reads=(Daemon.clock_steps,)),
        Rule(
            starved,
            ("node_starved",),
            reads=(Daemon.starved,),
            details=(Daemon.late_seconds, Daemon.stall_ratios, Collector.errors),
        ),
        Rule(rules, ("rule_failing",), reads=(FindingRule.errors,)),
        Rule(
            unbelievable,
            ("counters_not_believed",),
            reads=(SourceCounter.anomaly,),
            details=(Gpu.info, RdmaPort.info, Interface.info),
        ),
    ),
    windows=dict.fromkeys((Collector.errors, Worker.restarts, Daemon.clock_steps, FindingRule.errors), HOUR),
    events=frozenset({Worker.restarts, FindingRule.errors}),
)
