"""Faults that probes meet: slow paths, failures, and ranks that hang or crash."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from statistics import median

import pytest

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.faults.fault import SimulatedProbeFailure
from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]
Pair = tuple[int, int]
SMALL, LARGE = 8, 256 * 2**20
WARM_CALLS = range(30, 41)


def rank_seconds(rehearsal: Rehearsal, size: int, rank: int) -> float:
    """Of an all-reduce over all GPUs."""
    ask, ranks = rehearsal.probes.operation_seconds, range(len(rehearsal.node.preset.gpus))
    return median(ask("all_reduce", size, ranks, rank, call) for call in WARM_CALLS)


def seconds(rehearsal: Rehearsal, size: int) -> float:
    return rank_seconds(rehearsal, size, 0)


def pair_seconds(rehearsal: Rehearsal, size: int, source: int, destination: int) -> float:
    ask = rehearsal.probes.operation_seconds
    return median(ask("send_recv", size, (source, destination), destination, call) for call in WARM_CALLS)


def copy_seconds(rehearsal: Rehearsal, gpu: int) -> float:
    ask = rehearsal.probes.operation_seconds
    return median(ask("host_to_device", LARGE, (gpu,), gpu, call) for call in WARM_CALLS)


def slowed(rehearse: Rehearse, preset: str, faults: str, size: int = LARGE) -> dict[Pair, float]:
    """The ordered pairs that take over 1.15 times as long with the faults, and how many times."""
    healthy, struck = rehearse(preset).node.preset, rehearse(preset, faults)
    pairs = list(permutations(range(len(healthy.gpus)), 2))
    times = {pair: pair_seconds(struck, size, *pair) for pair in pairs}
    before = {pair: pair_seconds(rehearse(preset), size, *pair) for pair in pairs}
    return {pair: times[pair] / before[pair] for pair in pairs if times[pair] > 1.15 * before[pair]}


@pytest.mark.parametrize(
    ("direction", "struck"),
    [("both", {(1, 2), (2, 1)}), ("to_peer", {(1, 2)}), ("from_peer", {(2, 1)})],
)
@pytest.mark.parametrize("preset", ["h100x8", "a100x4", "rtx3090x4"])
def test_a_slow_pair_is_slow_in_its_directions(
    rehearse: Rehearse, preset: str, direction: str, struck: set[Pair]
) -> None:
    """A third of the rate between two GPUs, and no other pair is touched."""
    found = slowed(
        rehearse, preset, f"- {{fault: slow_pair, gpu: 1, peer: 2, bandwidth: 0.33, direction: {direction}, at: 0s}}"
    )

    assert set(found) == struck
    assert all(times == pytest.approx(3, rel=0.1) for times in found.values())


def test_a_slow_pair_can_be_late_alone(rehearse: Rehearse) -> None:
    """Three times the latency at its full bandwidth."""
    faults = "- {fault: slow_pair, gpu: 0, peer: 3, bandwidth: 1, latency: 3, at: 0s}"

    assert slowed(rehearse, "a100x4", faults) == {}
    late = slowed(rehearse, "a100x4", faults, SMALL)
    assert set(late) == {(0, 3), (3, 0)}
    assert all(times == pytest.approx(3, rel=0.06) for times in late.values())


def test_a_slow_pair_holds_collectives_that_cross_it(rehearse: Rehearse) -> None:
    """Without switches every ring crosses every pair; behind switches only neighbours in the ring are crossed."""
    slow = "- {{fault: slow_pair, gpu: {}, peer: {}, bandwidth: 0.5, at: 0s}}"

    meshed = seconds(rehearse("a100x4", slow.format(0, 2)), LARGE) / seconds(rehearse("a100x4"), LARGE)
    assert meshed == pytest.approx(2, rel=0.08)
    crossed, apart = (seconds(rehearse("h100x8", slow.format(2, peer)), LARGE) for peer in (3, 6))
    healthy = seconds(rehearse("h100x8"), LARGE)
    assert crossed / healthy == pytest.approx(2, rel=0.08)
    assert apart / healthy == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("preset", ["h100x8", "a100x4", "rtx3090x4"])
def test_a_slow_gpu_slows_all_its_ways(rehearse: Rehearse, preset: str) -> None:
    """To and from every other GPU, and its copies; no other pair, no other copy."""
    faults = "- {fault: slow_gpu, gpu: 1, bandwidth: 0.5, at: 0s}"

    found = slowed(rehearse, preset, faults)
    count = len(rehearse(preset).node.preset.gpus)
    assert set(found) == {pair for pair in permutations(range(count), 2) if 1 in pair}
    assert all(times == pytest.approx(2, rel=0.08) for times in found.values())
    copies = [copy_seconds(rehearse(preset, faults), gpu) / copy_seconds(rehearse(preset), gpu) for gpu in (0, 1)]
    assert copies == [pytest.approx(1, rel=0.05), pytest.approx(2, rel=0.05)]


def test_a_gpu_may_be_slow_to_other_gpus_alone(rehearse: Rehearse) -> None:
    """Its ways to them are slow, and its copies are as before."""
    faults = "- {fault: slow_gpu, gpu: 1, bandwidth: 0.5, traffic: peer, at: 0s}"

    assert set(slowed(rehearse, "a10x2", faults)) == {(0, 1), (1, 0)}
    copies = [copy_seconds(rehearse("a10x2", text), 1) for text in (faults, "")]
    assert copies[0] == pytest.approx(copies[1], rel=0.05)


def test_the_rank_on_a_slow_gpu_is_through_last(rehearse: Rehearse) -> None:
    """All wait for it, and it is a little behind them; on a healthy node none is."""
    struck = rehearse("h100x8", "- {fault: slow_gpu, gpu: 5, bandwidth: 0.5, at: 0s}")

    times = [rank_seconds(struck, LARGE, rank) for rank in range(8)]
    assert times.index(max(times)) == 5
    assert 1.005 < max(times) / median(times) < 1.02
    healthy = [rank_seconds(rehearse("h100x8"), LARGE, rank) for rank in range(8)]
    assert max(healthy) / median(healthy) < 1.004


def test_a_slow_pcie_switch_slows_what_crosses_it(rehearse: Rehearse) -> None:
    """All ways but that between the two GPUs of the other switch; the copies of its own two GPUs."""
    faults = "- {fault: slow_switch, device: 0000:21:00.0, bandwidth: 0.5, at: 0s}"

    found = slowed(rehearse, "rtx3090x4", faults)
    assert set(found) == set(permutations(range(4), 2)) - {(2, 3), (3, 2)}
    copies = [
        copy_seconds(rehearse("rtx3090x4", faults), gpu) / copy_seconds(rehearse("rtx3090x4"), gpu) for gpu in range(4)
    ]
    assert [round(times) for times in copies] == [2, 2, 1, 1]


def test_a_switch_can_be_slow_between_its_own_gpus_alone(rehearse: Rehearse) -> None:
    """The published case: the pair below one switch is the slow one, whatever the topology promises."""
    faults = "- {fault: slow_switch, device: 0000:21:00.0, bandwidth: 0.4, traffic: peer, at: 0s}"

    found = slowed(rehearse, "rtx3090x4", faults)
    assert set(found) == {(0, 1), (1, 0)}
    assert all(times == pytest.approx(2.5, rel=0.08) for times in found.values())


def test_a_slow_pcie_switch_does_not_touch_nvlink(rehearse: Rehearse) -> None:
    """The GPUs below it reach each other beside it; their copies cross it."""
    faults = "- {fault: slow_switch, device: 0000:38:00.0, bandwidth: 0.5, at: 0s}"

    assert slowed(rehearse, "h100x8", faults) == {}
    assert copy_seconds(rehearse("h100x8", faults), 2) / copy_seconds(rehearse("h100x8"), 2) > 1.9


@pytest.mark.parametrize("name", ["device: 0000:0a:00.0", "nvswitch: 2"])
def test_a_slow_nvswitch_slows_every_pair(rehearse: Rehearse, name: str) -> None:
    """Data are spread over all links, and some links of each GPU lead to it."""
    found = slowed(rehearse, "h100x8", f"- {{fault: slow_switch, {name}, bandwidth: 0.7, at: 0s}}")

    assert set(found) == set(permutations(range(8), 2))


@pytest.mark.parametrize(
    ("preset", "fault", "problem"),
    [
        ("h100x8", "slow_pair, gpu: 1, peer: 1", "peer: is the GPU itself"),
        ("h100x8", "slow_pair, gpu: 1", "peer: is missing"),
        ("h100x8", "slow_pair, peer: 1", "gpu: is missing"),
        ("h100x8", "slow_pair, gpu: 1, peer: 8", "peer: expected a whole number from 0 to 7"),
        ("h100x8", "slow_switch", "device: is missing"),
        ("h100x8", "slow_switch, device: 0000:17:00.0", "this node has no '0000:17:00.0'"),
        ("h100x8", "slow_switch, device: 0000:15:00.0, nvswitch: 0", "nvswitch: cannot stand beside 'device'"),
        ("b200x8", "slow_switch, nvswitch: 0", "slow_switch: this node has no NVSwitch"),
        ("a100x4", "slow_switch, device: 0000:15:00.0", "the host of this node sees no switch"),
        ("a10x2", "probe_hang, rank: 2", "rank: expected a whole number from 0 to 1"),
        ("a10x2", "rank_crash, phase: done", "phase: expected start, rendezvous, setup or measure"),
        ("a10x2", "probe_errors", "share: is missing"),
        ("a10x2", "latency_spikes, last: soon", "last: expected a duration"),
    ],
)
def test_what_cannot_be_slow_or_hang_is_refused(rehearse: Rehearse, preset: str, fault: str, problem: str) -> None:
    """A pair with itself, a device that is no switch, a rank that no probe has, a value that is none."""
    with pytest.raises(ConfigError) as caught:
        rehearse(preset, f"- {{fault: {fault}}}")

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "fault", ["slow_probe, latency: 5, bandwidth: 0.5", "slow_pair, gpu: 0, peer: 1, latency: 5", "slow_gpu, gpu: 1"]
)
def test_slow_parts_are_slow_while_their_fault_holds(rehearse: Rehearse, fault: str) -> None:
    """From its start to its end, half the bandwidth; a slow start adds its part."""
    rehearsal = rehearse("h100x8", f"- {{fault: {fault}, at: 200s, for: 60s}}")
    before = seconds(rehearsal, LARGE)

    rehearsal.now = 199.9
    assert seconds(rehearsal, LARGE) == pytest.approx(before, rel=0.05)
    rehearsal.now = 200.0
    assert seconds(rehearsal, LARGE) == pytest.approx(2 * before, rel=0.2)
    rehearsal.now = 260.0
    assert seconds(rehearsal, LARGE) == pytest.approx(before, rel=0.05)


def test_a_spike_lifts_small_calls_only(rehearse: Rehearse) -> None:
    """Eight times the latency while the fault holds; what takes long for its size does not notice."""
    rehearsal = rehearse("h100x8", "- {fault: latency_spikes, at: 200s, for: 60s}")
    small, large = seconds(rehearsal, SMALL), seconds(rehearsal, 2**33)

    rehearsal.now = 230.0
    assert seconds(rehearsal, SMALL) == pytest.approx(8 * small, rel=0.08)
    assert seconds(rehearsal, 2**33) == pytest.approx(large, rel=0.05)
    rehearsal.now = 260.0
    assert seconds(rehearsal, SMALL) == pytest.approx(small, rel=0.08)


def test_spikes_at_a_rate_last_a_while_each(rehearse: Rehearse) -> None:
    """Six an hour of 90 s each: from 200 s, then from 800 s, and none between them."""
    rehearsal = rehearse("h100x8", "- {fault: latency_spikes, latency: 5, rate: 6/h, last: 90s, at: 200s}")
    healthy = seconds(rehearsal, SMALL)

    for time, spike in ((199, False), (200, True), (289, True), (291, False), (799, False), (801, True), (891, False)):
        rehearsal.now = float(time)
        assert seconds(rehearsal, SMALL) == pytest.approx((5 if spike else 1) * healthy, rel=0.08), time


def test_a_slowdown_under_load_comes_after_so_much_work_and_to_its_gpu(rehearse: Rehearse) -> None:
    """At the tenth second of work, not before; ranks on other GPUs never meet it, nor does a node without the fault."""
    probes = rehearse("h100x8", "- {fault: sustained_slowdown, gpu: 2, bandwidth: 0.5, after: 10s}").probes

    assert [probes.slowdown_under_load(range(8), (), busy) for busy in (0.0, 9.99, 10.0)] == [1.0, 1.0, 2.0]
    assert probes.slowdown_under_load((0, 1), (), 20.0) == 1.0
    assert rehearse("h100x8").probes.slowdown_under_load(range(8), (), 20.0) == 1.0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("failing_probe, reason: unhandled system error", "unhandled system error"),
        ("gpu_lost, gpu: 5", "0000:9b:00.0: lost"),
        ("gpu_reset_required, gpu: 0", "0000:17:00.0: reset required"),
        ("gpu_missing, gpu: 0", "8 ranks on 7 GPUs"),
    ],
)
def test_a_probe_fails_with_its_reason(rehearse: Rehearse, fault: str, reason: str) -> None:
    """By injection, or because a GPU that it needs does not answer."""
    rehearsal = rehearse("h100x8", f"- {{fault: {fault}, at: 0s}}")

    with pytest.raises(SimulatedProbeFailure, match=reason):
        seconds(rehearsal, SMALL)


def test_a_gpu_that_the_plan_names_and_the_node_lacks_is_a_failure(rehearse: Rehearse) -> None:
    """A card that has gone missing since the plan was made, and a UUID of no card."""
    rehearsal = rehearse("h100x8", "- {fault: gpu_missing, gpu: 1, at: 0s}")
    uuids = [gpu.uuid for gpu in rehearsal.node.preset.gpus]

    for devices in (uuids[:2], ["GPU-of-another-node", uuids[0]]):
        with pytest.raises(SimulatedProbeFailure, match="there is no GPU GPU-"):
            rehearsal.probes.operation_seconds("all_reduce", SMALL, (0, 1), 0, 0, devices=devices)


def test_a_fault_of_another_gpu_leaves_a_probe_alone(rehearse: Rehearse) -> None:
    """Two ranks on GPUs 0 and 1 do not meet the faults of GPU 7."""
    kinds = ("failing_probe", "gpu_lost", "slow_gpu", "slow_probe, latency: 9", "latency_spikes")
    rehearsal = rehearse("h100x8", "\n".join(f"- {{fault: {kind}, gpu: 7, at: 0s}}" for kind in kinds))

    assert rehearsal.probes.operation_seconds("all_reduce", SMALL, (0, 1), 0, 40) < 9e-6


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_cycles_fails(rehearse: Rehearse, share: float) -> None:
    """Of 2000 cycles set up in different seconds so many fail as said, the same ones when asked again."""
    rehearsal = rehearse("h100x8", f"- {{fault: probe_errors, share: {share}, reason: nccl_error, at: 0s}}")

    def failed() -> list[bool]:
        outcomes = []
        for cycle in range(2000):
            rehearsal.now = 100.0 + 30 * cycle
            outcomes.append(rehearsal.probes.error_of_cycle(8) == "nccl_error")
        return outcomes

    first = failed()
    assert sum(first) / len(first) == pytest.approx(share, abs=0.03)
    rehearsal.now = 100.0
    assert failed() == first


def test_errors_of_cycles_hold_as_long_as_their_fault(rehearse: Rehearse) -> None:
    """And only for probes that use the GPU that it names."""
    rehearsal = rehearse("h100x8", "- {fault: probe_errors, share: 1, gpu: 6, at: 200s, for: 10s}")
    ask = rehearsal.probes.error_of_cycle

    outcomes = []
    for time in (199.0, 200.0, 210.0):
        rehearsal.now = time
        outcomes.append((ask(8), ask(4)))

    assert outcomes == [("", ""), ("injected failure", ""), ("", "")]


def test_a_rank_hangs_or_crashes_where_it_is_told_to(rehearse: Rehearse) -> None:
    """In its phase, on its rank, while the fault holds."""
    rehearsal = rehearse(
        "h100x8",
        "- {fault: probe_hang, phase: setup, rank: 2, at: 0s, for: 150s}\n"
        "- {fault: probe_hang, phase: start, how: blocked, at: 0s}\n"
        "- {fault: rank_crash, rank: 3, at: 0s}\n",
    )
    act = rehearsal.probes.rank_act

    assert [act("setup", rank) for rank in range(4)] == ["", "", "hang", ""]
    assert [act(phase, 0) for phase in ("start", "rendezvous", "setup", "measure")] == ["block", "", "", ""]
    assert [act(phase, 3) for phase in ("start", "rendezvous", "setup", "measure")] == ["", "", "", "crash"]
    rehearsal.now = 150.0
    assert act("setup", 2) == ""
