"""The daemon itself: what it cannot read, what hangs, and numbers that it does not believe."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import gpu_of, of_daemon
from commwatch.findings.rules.ports import INTERFACES, PORTS, Told, interface_at, port_at, sightings
from commwatch.findings.rules.rule_set import HOUR, Rule, RuleSet

_SUCCESS = "commwatch_collector_success"
_LAST_SUCCESS = "commwatch_collector_last_success_timestamp_seconds"
_INTERVAL = "commwatch_collector_interval_seconds"
_ERRORS = "commwatch_collector_errors_total"
_STUCK = "commwatch_worker_stuck"
_RESTARTS = "commwatch_worker_restarts_total"
_RELOADED = "commwatch_config_last_reload_successful"
_CLOCK_STEPS = "commwatch_clock_steps_total"
_RULE_ERRORS = "commwatch_finding_rule_errors_total"
_ANOMALY = "commwatch_counter_anomaly"
_GPUS = "commwatch_gpu_info"

_HANGS = frozenset({"crashed", "deadline"})
"""Why a worker is replaced that did not do its work; the others are replaced on purpose."""
_BLANK, _STALE = 2, 3
_NAMES = {_BLANK: "blank", _STALE: "standing still"}

_STARTING_FOR = 60.0
"""Seconds: a driver may need as long after the node has started."""


def failing(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Collectors that have not read everything for long, or never since the daemon started."""
    last = {labels["collector"]: when for labels, when in facts.series(_LAST_SUCCESS)}
    reasons: dict[str, list[Evidence]] = {}
    for labels, count in facts.increases(_ERRORS, HOUR):
        what = f"failed readings in the last hour: {labels['reason'].replace('_', ' ')}"
        reasons.setdefault(labels["collector"], []).append(Evidence(what, count))
    limit = thresholds.collector_failing_for_seconds
    for labels, success in facts.series(_SUCCESS):
        name = labels["collector"]
        age = facts.now - last[name] if name in last else None
        if success == 1 or (age is not None and age < limit):
            continue
        evidence = Evidence("last time that all was read", "never since the daemon started")
        if age is not None:
            evidence = Evidence("since all was read", age, "seconds", limit, "collector_failing_for_seconds")
        component = of_daemon(name, f"collector {name}")
        yield Sighting("collector_failing", component, (evidence, *reasons.get(name, ())))


def stale(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Collectors that report no failure and whose data are old all the same."""
    well = {labels["collector"] for labels, success in facts.series(_SUCCESS) if success == 1}
    for labels, when in facts.series(_LAST_SUCCESS):
        interval = facts.value(_INTERVAL, **labels)
        if interval is None or labels["collector"] not in well:
            continue
        age, by_interval = facts.now - when, thresholds.data_stale_intervals * interval
        key = "data_stale_seconds" if thresholds.data_stale_seconds > by_interval else "data_stale_intervals"
        limit = max(thresholds.data_stale_seconds, by_interval)
        if age > limit:
            component = of_daemon(labels["collector"], f"collector {labels['collector']}")
            yield Sighting("collector_stale", component, (Evidence("age of the data", age, "seconds", limit, key),))


def stuck(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Workers with processes that missed their deadline and have not come back."""
    for labels, count in facts.series(_STUCK):
        if count:
            component = of_daemon(labels["worker"], f"worker {labels['worker']}")
            yield Sighting("worker_stuck", component, (Evidence("processes that do not come back", count),))


def restarting(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Workers that crashed or hung several times in an hour."""
    told: dict[str, list[Evidence]] = {}
    counts: dict[str, float] = {}
    for labels, count in facts.increases(_RESTARTS, HOUR):
        worker, reason = labels["worker"], labels["reason"]
        if reason in _HANGS:
            counts[worker] = counts.get(worker, 0.0) + count
            told.setdefault(worker, []).append(Evidence(f"of these: {reason}", count))
    most = thresholds.worker_restarts_per_hour
    for worker, count in counts.items():
        if count > most:
            evidence = Evidence("times it was replaced in the last hour", count, "", most, "worker_restarts_per_hour")
            component = of_daemon(worker, f"worker {worker}")
            yield Sighting("worker_restarting", component, (evidence, *told[worker]))


def configuration(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Whether the configuration on disk was refused."""
    if facts.value(_RELOADED) == 0:
        evidence = Evidence("configuration on disk", "refused")
        yield Sighting("configuration_refused", of_daemon("configuration", "configuration"), (evidence,))


def clock(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Whether the wall clock stepped within the last hour."""
    for _, count in facts.increases(_CLOCK_STEPS, HOUR):
        evidence = Evidence("steps of more than 2 s in the last hour", count)
        yield Sighting("clock_stepped", Component("node", ""), (evidence,))


def rules(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Rules that failed within the last hour."""
    for labels, count in facts.increases(_RULE_ERRORS, HOUR):
        component = of_daemon(labels["rule"], f"rule {labels['rule']}")
        yield Sighting("rule_failing", component, (Evidence("looks that failed in the last hour", count),))


def unbelievable(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Devices with counters that are blank or stand still although they should move."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for labels, state in facts.series(_ANOMALY):
        if state in _NAMES:
            source, device = labels["source"], labels["device"]
            # All links of a GPU together: they have it at once.
            whole = device.partition("/")[0] if source == "nvml" else device
            counters = found.setdefault((source, whole), {})
            what = f"places where {labels['counter']} is {_NAMES[int(state)]}"
            counters[what] = counters.get(what, 0) + 1
    told: Told = {}
    for (source, device), counters in found.items():
        evidence = [Evidence(what, places) for what, places in counters.items()]
        told.setdefault(_device(facts, source, device), []).extend(evidence)
    return sightings("counters_not_believed", told)


def _device(facts: Facts, source: str, device: str) -> Component:
    """A device as ``counter_anomaly`` names it."""
    if source == "nvml":
        infos = (labels for labels, _ in facts.series(_GPUS) if labels["pci_bus_id"] == device)
        return gpu_of(next(infos, {"gpu": "", "pci_bus_id": device}))
    name, _, port = device.partition("/")
    return port_at(facts, {"device": name, "port": port}) if port else interface_at(facts, {"device": device})


DAEMON = RuleSet(
    name="The daemon itself",
    codes=(
        FindingCode(
            name="collector_failing",
            title="A collector does not read everything it should",
            severity="warning",
            role="state",
            meaning="For minutes a part of the node has not been read. What was not read is absent from the page, and "
            "faults there are not seen.",
            next_step="Read the reason in the evidence and the line in the log of commwatch. No permission: see the "
            "rights in the documentation of the installation.",
            alert="CommwatchCollectorFailing",
            opens_after=_STARTING_FOR,
        ),
        FindingCode(
            name="collector_stale",
            title="A collector's data are old although it reports no failure",
            severity="warning",
            role="state",
            meaning="A collector has not run for several of its intervals. Its numbers are not those of now.",
            next_step="See whether the clock of the node was set, and whether the host is starved of CPU; then look at "
            "the log of commwatch.",
            alert="CommwatchDataStale",
            opens_after=_STARTING_FOR,
        ),
        FindingCode(
            name="worker_stuck",
            title="A process of the daemon hangs in a driver",
            severity="warning",
            role="state",
            meaning="A call to a driver has not returned. The rest is read by another process; the device at fault is "
            "left alone.",
            next_step="See which GPU or adapter does not answer, and read the kernel log. Do not kill the process: it "
            "ends when the driver lets go.",
            alert="CommwatchWorkerStuck",
        ),
        FindingCode(
            name="worker_restarting",
            title="A process of the daemon fails again and again",
            severity="warning",
            role="state",
            meaning="It crashed or hung several times within an hour and was replaced each time. Readings have gaps.",
            next_step="Read the log of commwatch at these times, and the kernel log for the driver.",
            alert="CommwatchWorkerRestarting",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="configuration_refused",
            title="The configuration on disk is not in force",
            severity="warning",
            role="state",
            meaning="It was read and refused; the daemon goes on with the one before. A restart would fail.",
            next_step="commwatch check-config says what is wrong.",
            alert="CommwatchConfigReloadFailing",
        ),
        FindingCode(
            name="clock_stepped",
            title="The clock of the node was set",
            severity="info",
            role="state",
            meaning="The wall clock stepped by more than two seconds. Times in logs and findings around it do not "
            "compare with those of other nodes.",
            next_step="See why the time service steps the clock in place of slewing it.",
            alert="CommwatchClockStepped",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rule_failing",
            title="A rule of commwatch fails",
            severity="warning",
            role="state",
            meaning="A rule that looks for faults ended with an error. Whether its faults are there is not known.",
            next_step="Report the error in the log of commwatch: it is a defect of commwatch.",
            alert="CommwatchRuleFailing",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="counters_not_believed",
            title="Counters cannot be trusted",
            severity="info",
            role="state",
            meaning="A counter that the device has is blank, or stands still while another counts the same traffic. "
            "What is made of it, such as utilisation, is not known.",
            next_step="Update the driver or firmware; on repetition report it to the vendor.",
        ),
    ),
    rules=(
        Rule(
            failing,
            ("collector_failing",),
            reads=(_SUCCESS, _LAST_SUCCESS),
            details=(_ERRORS,),
            thresholds=("collector_failing_for_seconds",),
        ),
        Rule(
            stale,
            ("collector_stale",),
            reads=(_SUCCESS, _LAST_SUCCESS, _INTERVAL),
            thresholds=("data_stale_seconds", "data_stale_intervals"),
        ),
        Rule(stuck, ("worker_stuck",), reads=(_STUCK,)),
        Rule(restarting, ("worker_restarting",), reads=(_RESTARTS,), thresholds=("worker_restarts_per_hour",)),
        Rule(configuration, ("configuration_refused",), reads=(_RELOADED,)),
        Rule(clock, ("clock_stepped",), reads=(_CLOCK_STEPS,)),
        Rule(rules, ("rule_failing",), reads=(_RULE_ERRORS,)),
        Rule(unbelievable, ("counters_not_believed",), reads=(_ANOMALY,), details=(_GPUS, PORTS, INTERFACES)),
    ),
    windows=dict.fromkeys((_ERRORS, _RESTARTS, _CLOCK_STEPS, _RULE_ERRORS), HOUR),
    events=frozenset({_RESTARTS, _RULE_ERRORS}),
)
