"""From a fault of the simulated hardware through reader and analysis to the finding that names it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from commwatch.findings.codes import CODES, EVENTS, WATCHED
from commwatch.findings.finding import Match
from commwatch.findings.history import CounterHistory
from commwatch.findings.rule_engine import RuleEngine
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import RuleSet
from commwatch_rehearsal.simulation.presets import PRESETS
from support.facts import seen_by, shipped
from support.no_alarm import assert_no_alarm
from support.simulated_daemon import SimulatedDaemon, rehearsed, simulated, whole_node

HARDWARE = [rules for rules in RULE_SETS if rules.name in (
    "GPU", "Fabric", "NVLink", "NVLink errors", "PCIe links", "PCIe errors", "Kernel log"
)]  # fmt: skip
"""The rules of the hardware on the side of the GPUs."""

STEP = 30.0
"""Seconds between two looks."""
LEARNED = 720.0
"""Seconds after the first reading at which the inventory knows what is stable."""


def failed(rule: str, error: Exception) -> None:
    raise AssertionError(rule) from error


class Watched:
    """A node under the rules."""

    def __init__(self, node: SimulatedDaemon, rule_sets: Sequence[RuleSet] = RULE_SETS) -> None:
        self._node = node
        self._codes = [rule.codes[0] for rules in rule_sets for rule in rules.rules]
        self._engine = RuleEngine(rule_sets, shipped(), CounterHistory(WATCHED, EVENTS), failed)
        self._look()

    def _look(self) -> list[Match]:
        return self._engine.evaluate(self._node.snapshot(), self._node.clock.time())

    def after(self, seconds: float, step: float = STEP) -> dict[tuple[str, str], Match]:
        """What is matched after some time, by code and component; at last by what the rules declare alone."""
        until, seen = self._node.time + seconds, []
        while self._node.time < until:
            self._node.time += step
            self._node.run()
            seen = self._look()
        assert seen == [one for code in self._codes for one in seen_by(code, self._engine.facts)]
        return {(one.code, one.component.identity): one for one in seen}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_nothing_is_wrong_with_a_healthy_node(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with what it shows nor with how its counters move; what is worth knowing is shown as that."""
    job = "- {fault: job, at: 1h4m, for: 1d, nvlink_utilization: 0.5}\n"
    with whole_node(preset, tmp_path, monkeypatch, faults=job) as node:
        watched = Watched(node)
        for seconds in (240.0, LEARNED):  # idle, and at work
            seen = watched.after(seconds, step=LEARNED / 6)
            assert {code for code, _ in seen if CODES[code].severity != "info"} == set()
            values = {
                (name, *labels.values()): float(value)
                for name in ("commwatch_counters_anomaly", "commwatch_pcie_link_degraded", "commwatch_gpu_state",
                             "commwatch_rdma_port_flaps_total", "commwatch_counters_reset_total")
                for labels, value in node.snapshot().samples(name)
            }  # fmt: skip
            assert_no_alarm(values, preset)


A100X4 = (
    "fault: job, nvlink_utilization: 0.5",
    "fault: nvlink_down, gpu: 3, link: 5",
    "fault: nvlink_slow, gpu: 0, link: 1, factor: 0.4",
    "fault: nvlink_crc, gpu: 1, link: 2, rate: 200/s",
    "fault: nvlink_recovery, gpu: 1, link: 3, rate: 4/min",
    "fault: nvlink_replay, gpu: 1, link: 0, rate: 2/min",
    "fault: pcie_generation, gpu: 2, generation: 1",
    "fault: gpu_throttled, gpu: 2, reason: hw_power_brake",
)
A100X4_FOUND = {
    "gpu_slowed_down gpu/0000:81:00.0",
    "nvlink_below_siblings gpu/0000:01:00.0",
    "nvlink_bit_errors nvlink/0000:41:00.0/2",
    # Both ends of the link between two GPUs are down, which is one fault: the far end is link 5 of 0000:c1:00.0.
    "nvlink_down nvlink/0000:41:00.0/9",
    "nvlink_recovering nvlink/0000:41:00.0/3",
    "nvlink_replays nvlink/0000:41:00.0/0",
    "pcie_generation_low pcie_link/0000:81:00.0",
    "xid_fabric gpu/0000:41:00.0",
    "xid_fabric gpu/0000:c1:00.0",
}

B200X8 = (
    "fault: nvlink_recovery_failed, gpu: 3, link: 5",
    "fault: nvlink_bit_errors, gpu: 1, link: 1, rate: 2/s, effective: 1e-11",
    "fault: nvlink_packet_errors, gpu: 0, link: 2, counter: malformed, rate: 2/min",
    "fault: nvlink_packet_errors, gpu: 0, link: 3, counter: receive_remote, rate: 2/min",
    "fault: xid, gpu: 4, xid: 119",
    "fault: xid, gpu: 5, xid: 31",
)
B200X8_FOUND = {
    "nvlink_bit_errors nvlink/0000:18:00.0/1",
    "nvlink_down nvlink/0000:3b:00.0/5",
    "nvlink_packet_errors nvlink/0000:17:00.0/2",
    "nvlink_recovery_failed nvlink/0000:3b:00.0/5",
    "nvlink_remote_errors nvlink/0000:17:00.0/3",
    "xid_fabric gpu/0000:3b:00.0",
    "xid_gpu gpu/0000:9a:00.0",
}

H100X8 = (
    "fault: p2p_broken, gpu: 2",
    "fault: fabric_unhealthy, gpu: 1, check: route",
    "fault: fabric_unhealthy, gpu: 4, check: configuration",
    "fault: fabric_unhealthy, gpu: 5, check: bandwidth",
    "fault: service_stopped, service: nv-fabricmanager",
    "fault: sxid, nvswitch: 0, sxid: 20034, link: 30, severity: Fatal",
    "fault: sxid, nvswitch: 1, sxid: 12028, link: 30",
    "fault: sxid, nvswitch: 2, sxid: 20034, link: 30, severity: Non-fatal",
    "fault: recovery_needed, gpu: 0, action: gpu_reset",
    "fault: gpu_lost, gpu: 6",
    "fault: gpu_reset_required, gpu: 3",
    # Its NVLinks are reported down, and nothing is broken.
    "fault: mig_enabled, gpu: 7",
)
H100X8_FOUND = {
    "fabric_limited gpu/0000:9b:00.0",
    "fabric_manager_down service/nvidia-fabricmanager",
    "fabric_misconfigured gpu/0000:9a:00.0",
    "fabric_unhealthy gpu/0000:18:00.0",
    "gpu_lost gpu/0000:ba:00.0",
    "gpu_recovery_needed gpu/0000:17:00.0",
    "gpu_reset_required gpu/0000:3b:00.0",
    "nvlink_p2p_refused gpu/0000:3a:00.0",
    "sxid_fatal nvswitch/0000:08:00.0",
    "sxid_warning nvswitch/0000:09:00.0",
    "sxid_warning nvswitch/0000:0a:00.0",
    "xid_fabric gpu/0000:ba:00.0",
}

A10X2 = (
    "fault: pcie_width, gpu: 1, lanes: 8",
    "fault: pcie_replay, gpu: 0, rate: 20/s",
    "fault: pcie_aer, gpu: 0, severity: fatal, error: DLP, rate: 1/min",
    "fault: pcie_aer, gpu: 1, severity: correctable, error: BadTLP, rate: 10/s",
    "fault: pcie_errors, gpu: 1, counter: nonfatal, rate: 1/min",
)
A10X2_FOUND = {
    "pcie_corrected pcie_link/0000:99:00.0",
    "pcie_fatal pcie_link/0000:17:00.0",
    "pcie_nonfatal pcie_link/0000:99:00.0",
    "pcie_replays pcie_link/0000:17:00.0",
    "pcie_width_dropped pcie_link/0000:99:00.0",
}


@pytest.mark.parametrize(
    ("preset", "faults", "found"),
    [
        ("a100x4", A100X4, A100X4_FOUND),
        ("b200x8", B200X8, B200X8_FOUND),
        ("h100x8", H100X8, H100X8_FOUND),
        ("a10x2", A10X2, A10X2_FOUND),
    ],
)
def test_each_fault_of_the_hardware_is_found_where_it_is(
    preset: str, faults: tuple[str, ...], found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault that begins on a known node is named at its part, and nothing else is."""
    start = 3600.0 + LEARNED + STEP
    text = "".join(f"- {{{fault}, at: {start:.0f}s}}\n" for fault in faults)
    with whole_node(preset, tmp_path, monkeypatch, faults=text) as node:
        watched = Watched(node, HARDWARE)
        before = watched.after(LEARNED, step=LEARNED / 6)
        seen = watched.after(5 * STEP)

    assert {code for code, _ in before if CODES[code].severity != "info"} == set()
    assert {f"{code} {component}" for code, component in seen if CODES[code].severity != "info"} == found


def test_a_link_that_was_down_for_a_minute_leaves_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Link state, and its Xid and SXid: all is over within ten minutes of the last event, and stays in the history."""
    fault = "- {fault: nvlink_down, gpu: 2, link: 3, at: 800s, for: 60s}"
    with rehearsed("h100x8", tmp_path, monkeypatch, fault) as daemon:
        daemon.until(13, step=120.0)
        daemon.until(15, step=20.0)
        [down] = [one for one in daemon.verdict.findings if one.severity == "critical"]
        daemon.until((860 + 600) / 60, step=60.0)
        score = daemon.verdict.score()

        assert (down.code, {one.code for one in down.causes}) == ("nvlink_down", {"sxid_fatal", "xid_fabric"})
        assert [one for one in daemon.verdict.findings if one.severity != "info"] == []
        assert all(loss.part != "cap" for loss in score.losses)
        closed = {one.match.code: (one.since - daemon.booted_at, one.until - daemon.booted_at)
                  for one in daemon.verdict.register.closed()}  # fmt: skip
    assert closed.keys() == {"nvlink_down", "sxid_fatal", "xid_fabric"}
    assert all(800 <= since < 830 and 860 <= until <= 900 for since, until in closed.values())


def test_a_link_that_stays_down_keeps_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they are counted."""
    with rehearsed("h100x8", tmp_path, monkeypatch, "- {fault: nvlink_down, gpu: 2, link: 3, at: 800s}") as daemon:
        daemon.until(13, step=120.0)
        daemon.until(15, step=20.0)
        daemon.until((860 + 1200) / 60, step=120.0)
        told = {one.code for one in daemon.verdict.register.open_incidents()}

    assert {"nvlink_down", "sxid_fatal", "xid_fabric"} <= told


def test_both_ends_of_a_link_are_one_finding_over_a_restart(tmp_path: Path) -> None:
    """With what the drivers of both report, those of its own GPU first: where it leads was said while it was up."""
    fault = "- {fault: nvlink_down, gpu: 1, link: 5, at: 30s}"
    ends = [PRESETS["a100x4"].gpus[place].pci_address for place in (1, 2)]
    for begin in (0.0, 90.0):
        with simulated("a100x4", tmp_path, faults=fault, time_now=begin) as daemon:
            for seconds in range(0, 81, 5):
                daemon.step_to(begin + seconds)
            [down] = [one for one in daemon.verdict.findings if one.severity != "info"]

        assert (down.key, down.detail) == (
            ("nvlink_down", f"nvlink/{ends[0]}/5"), f"the link is inactive; its other end is link 5 of {ends[1]}"
        )  # fmt: skip
        assert [one.component.key for one in down.causes] == ends


@pytest.mark.parametrize("preset", ["h100x8", "b200x8"])
def test_a_fabric_manager_that_was_never_seen_running_is_down(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPUs have joined before it ended; also where the NVSwitches do not show on the bus.

    While the services are not read nothing is known of it.
    """
    fault = "- {fault: service_stopped, service: nv-fabricmanager, at: 0s, for: 1850s}"
    with rehearsed(preset, tmp_path, monkeypatch, fault) as daemon:
        daemon.until(30, step=60.0)
        found = [one.key for one in daemon.verdict.findings]
        daemon.engine.store.expire(daemon.time + 600.0)
        assert list(daemon.snapshot().samples("commwatch_service_running")) == []
        daemon.until(35, step=60.0)
        left = daemon.verdict.findings

    assert (found, left) == ([("fabric_manager_down", "service/nvidia-fabricmanager")], [])


@pytest.mark.parametrize(
    ("log", "xid"), [("", "xid_fabric"), ("- {fault: kernel_log_unreadable, at: 0s}\n", "xid_nonfatal")]
)
def test_a_link_of_nvlink_5_that_is_down_is_what_a_node_tells_first(
    log: str, xid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel log is not read, so that its Xid is not known to be fatal."""
    fault = f"{log}- {{fault: nvlink_down, gpu: 2, link: 3, at: 700s}}"
    with rehearsed("b200x8", tmp_path, monkeypatch, fault) as daemon:
        daemon.until(13, step=60.0)
        [down] = [one for one in daemon.verdict.findings if one.severity == "critical"]
        told = {one.code for one in daemon.verdict.register.open_incidents()}

    assert (down.code, {one.code for one in down.causes}) == ("nvlink_down", {"xid_fabric"} & {xid})
    assert xid in told
