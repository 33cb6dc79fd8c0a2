"""A full scan over what the daemon knows: fresh values in the snapshot, and findings by the same rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from commwatch.diagnosis.full_scan import FreshProbe, with_scan
from commwatch.diagnosis.known import Known
from commwatch.findings.finding import Component, Finding
from commwatch.findings.score import records
from commwatch.findings.score.score import score_of
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.plan import CycleResult, Failed, Measured, Skipped, Yielded
from commwatch.probes.results.record import Reading
from commwatch_exporters.node.model import Probe
from diagnosis.exposed import answer_of, cause, finding, known_of
from heatmap.matrices import endpoints, matrix
from support.facts import NOW
from support.machines import merged
from support.passes import in_one_pass

SCANNED_AT = NOW + 20
BANDWIDTH = "commwatch_pair_bandwidth_bytes_per_second"
EXPECTED = "commwatch_pair_expected_bandwidth_bytes_per_second"
BACKEND: Final = "simulated"
PROBE = ("all_reduce", BACKEND)
ADDRESSES = [end.pci_address for end in endpoints(4)]
CELLS = [(one, two) for one in range(4) for two in range(4) if one != two]
MEASURED = Measured(finished_at=SCANNED_AT, occupied_seconds=1.0, setup_seconds=1.0, outcomes=())
FAILED = Failed(finished_at=SCANNED_AT, occupied_seconds=1.0, reason="nccl_error", detail="unhandled system error")
WRONG = Failed(finished_at=SCANNED_AT, occupied_seconds=1.0, reason="wrong_result", detail="not what was sent")
LOCKED = Failed(finished_at=SCANNED_AT, occupied_seconds=0.0, reason="start", detail="the probe lock cannot be taken")
CAME = Yielded(finished_at=SCANNED_AT, occupied_seconds=1.0, reason="process_appeared", detail="process 7 came")
BUSY = Skipped(finished_at=SCANNED_AT, reason="gpu_busy", detail="GPU1 has a process")


def node(**of_probe: float) -> dict[str, dict[Any, float]]:
    """Four GPUs whose last matrix was well, and a probe of the daemon with some numbers."""
    gpus = {(end.label, end.pci_address, end.device, "", end.name, ""): 1.0 for end in endpoints(4)}
    pairs = {(str(one), str(two), BACKEND): 12.7e9 for one, two in CELLS}
    info = (*PROBE, "all_reduce", "8", "67108864", "4", "", "", "", "reference")
    return merged(
        {
            "commwatch_gpu_info": gpus,
            BANDWIDTH: pairs,
            EXPECTED: dict.fromkeys(pairs, 11.9e9),
            "commwatch_probe_info": {info: 1.0},
            "commwatch_probe_attempts_total": {PROBE: 7.0},
        },
        {f"commwatch_probe_{name}": {PROBE: value} for name, value in of_probe.items()},
    )


def answers(probe: str, *results: CycleResult) -> tuple[Answer, ...]:
    """What cycles of a probe came to."""
    return tuple(
        answer_of(msgspec.structs.replace(result, finished_at=result.finished_at + place), probe=probe, ranks=4)
        for place, result in enumerate(results)
    )


def fresh_pairs(*slow: tuple[int, int], bad: tuple[bool, ...] = (True, True, True), gpus: int = 4) -> FreshProbe:
    """A scan of pairs in which some are slow."""
    cells = [cell for cell in CELLS if max(cell) < gpus]
    readings: list[Reading] = []
    for one, two in cells:
        labels = (str(one), str(two), BACKEND)
        rate = 4e9 if (one, two) in slow or (two, one) in slow else 12.7e9
        readings += [(BANDWIDTH, labels, rate), (EXPECTED, labels, 11.9e9)]
    made = answers("pairs", *(MEASURED for _ in bad))
    return FreshProbe("pairs", BACKEND, made, bad, tuple(readings), matrix(gpus))


def fresh_probe(
    *results: CycleResult, bad: tuple[bool, ...] = (), comparable: bool = True, **values: float
) -> FreshProbe:  # fmt: skip
    """A scan of all_reduce."""
    info = (*PROBE, "all_reduce", "8", "67108864", "4", "", "", "", "reference")
    readings = (
        ("commwatch_probe_info", info, 1),
        ("commwatch_probe_attempts_total", PROBE, 1),
        *((f"commwatch_probe_{name}", PROBE, value) for name, value in values.items()),
    )
    return FreshProbe("all_reduce", BACKEND, answers("all_reduce", *results), bad or (False,) * len(results),
                      readings if values else (), None, comparable)  # fmt: skip


def open_finding(code: str, component: Component, **changes: Any) -> Finding:
    """One of the daemon's."""
    return msgspec.structs.replace(finding(code, component.identity), component=component.record, **changes)


def narrow(gpu: int) -> Finding:
    """A GPU with fewer lanes than before, for an hour."""
    address = ADDRESSES[gpu]
    link = Component("pcie_link", address, f"PCIe link of GPU{gpu}", frozenset({address, f"{address}/pcie"}))
    return open_finding("pcie_width_dropped", link, since=NOW - 3600)


def pair(one: int, two: int) -> Component:
    """Two GPUs."""
    return Component("pair", f"{ADDRESSES[one]}-{ADDRESSES[two]}", f"GPU{one}-GPU{two}",
                     frozenset({f"{ADDRESSES[one]}/pcie", f"{ADDRESSES[two]}/pcie"}))  # fmt: skip


def scanned(daemon: Known, *fresh: FreshProbe) -> dict[tuple[str, str], Finding]:
    """The findings after a scan, by code and name of the component."""
    after = with_scan(daemon, fresh)
    assert after.scanned == tuple(answer for one in fresh for answer in one.answers)
    return {(one.code, one.component.name or one.component.key): one for one in after.findings.findings}


def test_the_facts_are_made_once_and_again_for_other_values() -> None:
    """All branches read the same node; after a scan it is the one with the fresh values."""
    known = known_of(node(last_latency_seconds=14e-6))
    seen = with_scan(known, [fresh_probe(MEASURED, last_latency_seconds=20e-6)])

    assert known.facts is known.facts
    assert [value for _, value in known.facts.each(Probe.last_latency_seconds)] == [14e-6]
    assert [value for _, value in seen.facts.each(Probe.last_latency_seconds)] == [20e-6]


def test_a_fault_that_the_daemon_has_not_seen_yet_is_a_finding_with_its_cause() -> None:
    """Its matrix was well; the narrowed link that it has open explains the pair, and stands beneath it."""
    found = scanned(known_of(node(), [narrow(1)]), fresh_pairs((0, 1)))

    assert [*found] == [("pair_slow", "GPU0-GPU1")]
    one = found["pair_slow", "GPU0-GPU1"]
    assert [cause.code for cause in one.causes] == ["pcie_width_dropped"]
    assert one.severity == "critical"  # that of its cause
    assert one.detail == "Seen by this scan, 3 times in a row."
    assert (one.since, one.last_seen) == (SCANNED_AT, SCANNED_AT + 2)
    assert one.evidence[0].value == pytest.approx(4 / 11.9)


LINK = msgspec.structs.replace(cause("pcie_width_dropped", ""), component=narrow(1).component)
SINGLE = "Seen by this scan, in a single reading: no streak."
INTERRUPTED = replace(fresh_pairs((0, 1), bad=(True,)), answers=answers("pairs", MEASURED, CAME), bad=(True, False))


@in_one_pass(
    "open_before, fresh, code, name, since, detail",
    [
        # Of a single reading no streak is claimed, and it is open since then; so it is where a job came meanwhile.
        ([], fresh_pairs((0, 1), bad=(True,)), "pair_slow", "GPU0-GPU1", SCANNED_AT, SINGLE),
        ([], fresh_pairs((0, 1), bad=(False, True)), "pair_slow", "GPU0-GPU1", SCANNED_AT + 1, SINGLE),
        ([], INTERRUPTED, "pair_slow", "GPU0-GPU1", SCANNED_AT, SINGLE),
        # What the daemon has open keeps its time, with the evidence of the scan.
        ([open_finding("pair_slow", pair(0, 1), since=NOW - 7200)], fresh_pairs((0, 1)),
         "pair_slow", "GPU0-GPU1", NOW - 7200, "Seen again by this scan."),
        # The pair is well again; the link is still narrow, and stands alone.
        ([open_finding("pair_slow", pair(0, 1), since=NOW - 600, causes=(LINK,))], fresh_pairs(),
         "pcie_width_dropped", "PCIe link of GPU1", NOW - 600, ""),
        # GPU2-GPU3 was not measured: what the daemon has of it stays.
        ([open_finding("pair_slow", pair(0, 1)), open_finding("pair_slow", pair(2, 3), since=NOW - 60)],
         fresh_pairs(gpus=2), "pair_slow", "GPU2-GPU3", NOW - 60, ""),
    ],
)  # fmt: skip
def test_one_finding_is_left_of_what_the_daemon_had_and_the_scan_saw(
    open_before: list[Finding], fresh: FreshProbe, code: str, name: str, since: float, detail: str
) -> None:
    """With the time at which it opened, and how often it was seen."""
    found = scanned(known_of(node(), open_before), fresh)

    assert [*found] == [(code, name)]
    one = found[code, name]
    assert (one.since, one.detail) == (since, detail)
    assert not detail or one.evidence[0].what == "share of the expected bandwidth"


@in_one_pass(
    "fresh, stays",
    [
        (fresh_probe(MEASURED, last_latency_seconds=14e-6, latency_spike_streak=0), False),
        (fresh_probe(MEASURED, last_latency_seconds=14e-6, latency_spike_streak=0, comparable=False), True),
        (fresh_probe(MEASURED, CAME, last_latency_seconds=14e-6, latency_spike_streak=0), False),
        (fresh_probe(BUSY), True),
        (fresh_probe(FAILED), True),
    ],
)
def test_a_finding_of_a_probe_stays_unless_the_probe_was_well(fresh: FreshProbe, stays: bool) -> None:
    """Not where it was skipped, failed, or was measured over other GPUs."""
    daemon = known_of(node(), [open_finding("probe_latency_high", Component("probe", "all_reduce"))])

    assert (("probe_latency_high", "all_reduce") in scanned(daemon, fresh)) == stays


def test_three_slow_readings_make_the_streak_that_the_daemon_asks_for() -> None:
    """Two do not."""
    for streak, codes in ((2, []), (3, ["probe_latency_high"])):
        fresh = fresh_probe(
            *(MEASURED,) * streak, bad=(True,) * streak, last_latency_seconds=80e-6, latency_spike_streak=streak
        )
        assert [code for code, _ in scanned(known_of(node()), fresh)] == codes


def test_failures_in_a_row_and_a_wrong_result_are_findings() -> None:
    """Something wrong that arrived is one at once; three failures are, two are not."""
    assert scanned(known_of(node()), fresh_probe(FAILED, FAILED, bad=(True, True))) == {}
    failing = scanned(known_of(node()), fresh_probe(FAILED, FAILED, FAILED, bad=(True,) * 3))
    locked = scanned(known_of(node()), fresh_probe(LOCKED, LOCKED, LOCKED, bad=(True,) * 3))
    wrong = scanned(known_of(node()), fresh_probe(WRONG, bad=(True,)))

    assert locked == {}  # no fault of the node
    assert [code for code, _ in failing] == ["probe_failing"]
    assert [code for code, _ in wrong] == ["probe_wrong_result"]


def test_a_finding_of_a_later_version_is_kept_as_it_is() -> None:
    """The command does not know what it means, and the daemon does."""
    other = finding("something_new", "gpu/x")

    assert scanned(known_of(node(), [other]), fresh_pairs())["something_new", "x"] == other


def test_the_matrix_is_the_fresh_one_and_without_one_that_of_the_daemon() -> None:
    """A scan that measured no pairs leaves it."""
    own = matrix(4, taken_at=1.0)
    daemon = replace(known_of(node()), matrix=own)

    assert with_scan(daemon, [fresh_probe(BUSY)]).matrix is own
    assert with_scan(daemon, [fresh_pairs()]).matrix == matrix(4)


def test_fresh_numbers_take_the_place_of_those_of_their_probe_alone() -> None:
    """Counts go on as the daemon counts them; what it had and the scan has not is gone; other probes stay."""
    numbers = merged(
        node(last_latency_seconds=14e-6, latency_drift_ratio=1.0),
        {
            "commwatch_probe_last_latency_seconds": {("other", BACKEND): 5e-6},
            "commwatch_suspect_ratio": {("gpu", "GPU2"): 0.9},
        },
    )
    fresh = fresh_probe(MEASURED, last_latency_seconds=20e-6, setup_seconds=2.0), fresh_pairs()
    metrics = with_scan(known_of(numbers), fresh).snapshot.metrics
    seen = {(metric.name, *one.labels.values()): one.value for metric in metrics for one in metric.series}

    assert seen[("commwatch_probe_last_latency_seconds", *PROBE)] == 20e-6
    assert seen["commwatch_probe_last_latency_seconds", "other", BACKEND] == 5e-6
    assert seen[("commwatch_probe_setup_seconds", *PROBE)] == 2.0
    assert ("commwatch_probe_latency_drift_ratio", *PROBE) not in seen
    assert seen[("commwatch_probe_attempts_total", *PROBE)] == 7.0
    assert "commwatch_suspect_ratio" not in {metric for metric, *_ in seen}
    assert len([metric for metric, *_ in seen if metric == BANDWIDTH]) == 12


def test_a_scan_that_measured_nothing_leaves_the_snapshot() -> None:
    """Skipped probes have no numbers."""
    known = known_of(node(last_latency_seconds=14e-6))

    assert with_scan(known, [fresh_probe(BUSY)]).snapshot == known.snapshot


def test_the_score_is_that_of_the_scan_but_for_what_takes_days() -> None:
    """Half of the bandwidth: the daemon's score does not stand; its stability does. A scan of nothing leaves it."""
    daemon = known_of(node())
    swings = (records.Reading("probe all_reduce", 0.7, "3 of 10"),)
    steady = records.weighted([records.PartReadings("stability", swings, least_counts=True, needs="")], 0.85, 0.7)
    daemon = replace(daemon, score=msgspec.structs.replace(daemon.score, score=steady))
    half = fresh_probe(MEASURED, bandwidth_utilization_ratio=0.5, last_bus_bandwidth_bytes_per_second=200e9)

    after = {part.name: part.ratio for part in with_scan(daemon, [half]).score.score.parts}

    assert after["bandwidth"] == 0.75  # the pairs give all that is expected
    assert after["stability"] == 0.7
    assert with_scan(daemon, [fresh_probe(BUSY)]).score == daemon.score


def test_a_scan_of_some_gpus_leaves_the_score_of_the_node() -> None:
    """Its probe is well; the loss among the other GPUs is still open, and still costs what it did."""
    loss = finding("probe_bandwidth_low", "probe/all_reduce")
    daemon = known_of(node(last_bus_bandwidth_bytes_per_second=160e9, bandwidth_utilization_ratio=0.4), [loss])
    before = score_of(daemon.facts, daemon.thresholds, [loss])
    daemon = replace(daemon, score=msgspec.structs.replace(daemon.score, score=before))
    well: dict[str, Any] = {"last_bus_bandwidth_bytes_per_second": 380e9, "bandwidth_utilization_ratio": 1.0}

    some, all_gpus = (with_scan(daemon, [fresh_probe(MEASURED, comparable=one, **well)]) for one in (False, True))

    assert some.score.score == before
    assert [one.code for one in some.findings.findings] == ["probe_bandwidth_low"]
    assert (before.word, all_gpus.score.score.word) == ("needs work", "excellent")
    assert all_gpus.findings.findings == ()
