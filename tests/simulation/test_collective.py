"""What operations between GPUs take on the simulated node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from statistics import fmean, median

import pytest

from commwatch.probes.results.published import published
from commwatch_rehearsal.simulation.presets import PRESETS
from commwatch_rehearsal.simulation.probe_answers import SimulatedProbes
from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]
MIB = 2**20
SMALL, LARGE = 8, 64 * MIB
WARM_CALLS = range(30, 51)

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _ranks: 1.0,
}
"""Bus bandwidth over size and time, as nccl-tests defines it."""


def seconds(rehearsal: Rehearsal, size: int, operation: str = "all_reduce", members: Sequence[int] = ()) -> float:
    """Median over some calls of rank 0, with clocks that have risen."""
    members = members or range(len(rehearsal.node.preset.gpus))
    ask = rehearsal.probes.operation_seconds
    return median(ask(operation, size, members, members[0], call) for call in WARM_CALLS)


def bus_bandwidth(
    rehearsal: Rehearsal, size: int = LARGE, operation: str = "all_reduce", members: Sequence[int] = ()
) -> float:
    """Bytes per second."""
    ranks = len(members) or len(rehearsal.node.preset.gpus)
    return FACTORS[operation](ranks) * size / seconds(rehearsal, size, operation, members)


def pair_seconds(rehearsal: Rehearsal, size: int, source: int, destination: int, both_ways: bool = False) -> float:
    ask = rehearsal.probes.operation_seconds
    return median(
        ask("send_recv", size, (source, destination), destination, call, both_ways=both_ways) for call in WARM_CALLS
    )


def pair_bandwidth(rehearsal: Rehearsal, source: int, destination: int, both_ways: bool = False) -> float:
    return LARGE / pair_seconds(rehearsal, LARGE, source, destination, both_ways)


def copy_bandwidth(rehearsal: Rehearsal, gpu: int, operation: str = "host_to_device") -> float:
    ask = rehearsal.probes.operation_seconds
    return LARGE / median(ask(operation, LARGE, (gpu,), gpu, call) for call in WARM_CALLS)


@pytest.fixture
def own(rehearse: Rehearse, tmp_path: Path) -> Callable[[str], Rehearsal]:
    """Makes a node of one's own from the text of its file."""

    def make(text: str) -> Rehearsal:
        file = tmp_path / "own.yaml"
        file.write_text(text)
        return rehearse(str(file))

    return make


@pytest.mark.parametrize(
    ("settings", "slower"),
    [
        ({}, False),
        ({"NCCL_NVLS_ENABLE": "1", "NCCL_ALGO": "nvls,ring", "NCCL_BUFFSIZE": "4"}, False),
        ({"NCCL_NVLS_ENABLE": "0"}, True),
        ({"NCCL_CUMEM_ENABLE": "0"}, True),
        ({"NCCL_ALGO": "Ring"}, True),
        ({"NCCL_P2P_DISABLE": "1"}, True),
    ],
)
def test_settings_take_away_what_they_name(rehearse: Rehearse, settings: dict[str, str], slower: bool) -> None:
    """The switches' sums, or all ways between GPUs but those by the host."""
    rehearsal = rehearse("h100x8")
    rehearsal.probes = SimulatedProbes(rehearsal.node, settings)

    assert (seconds(rehearsal, 256 * MIB) > 1.1 * seconds(rehearse("h100x8"), 256 * MIB)) == slower
    assert (pair_bandwidth(rehearsal, 0, 1) > 300e9) == ("NCCL_P2P_DISABLE" not in settings)


@pytest.mark.parametrize(
    ("size", "published_microseconds"),
    [(1 * MIB, 27.8), (4 * MIB, 53), (8 * MIB, 81), (16 * MIB, 121), (32 * MIB, 195)],
)
def test_eight_gpus_behind_switches_take_what_was_published(
    rehearse: Rehearse, size: int, published_microseconds: float
) -> None:
    """8 H20, which have the links of an H100 (Mooncake issue 3484), within a quarter at every size."""
    assert seconds(rehearse("h100x8"), size) * 1e6 == pytest.approx(published_microseconds, rel=0.25)


@pytest.mark.parametrize(("size", "published_gigabytes"), [(64 * MIB, 201), (256 * MIB, 222), (1024 * MIB, 230)])
def test_eight_a100_give_what_was_published(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch, size: int, published_gigabytes: float
) -> None:
    """Bus bandwidth of SuperBench's example log, within a tenth."""
    model = PRESETS["h100x8"].model
    assert model.nvlink is not None
    links = replace(model.nvlink, version=4, links=12)
    monkeypatch.setitem(PRESETS, "h100x8", replace(PRESETS["h100x8"], model=replace(model, nvlink=links)))

    assert bus_bandwidth(rehearse("h100x8"), size) / 1e9 == pytest.approx(published_gigabytes, rel=0.1)


@pytest.mark.parametrize("preset", ["h100x8", "b200x8"])
@pytest.mark.parametrize("size", [64 * MIB, 256 * MIB, 1024 * MIB, 8192 * MIB])
def test_switches_that_sum_up_give_what_was_published(rehearse: Rehearse, preset: str, size: int) -> None:
    """All-reduces of 8 H100 and of 8 B200 with NVLink SHARP, within a tenth."""
    reference = published(PRESETS[preset].model.name, 8, size)

    assert reference is not None
    assert bus_bandwidth(rehearse(preset), size) == pytest.approx(reference[0], rel=0.1)


def test_a_node_whose_switches_no_longer_sum_up_reads_below_nine_tenths_from_its_first_result_on(
    rehearse: Rehearse,
) -> None:
    """Rings give what the model of rings says, so that only a published result with NVLS shows the loss."""
    reference = published("NVIDIA H100 80GB HBM3", 8, LARGE)

    assert reference is not None
    assert 0.8 < bus_bandwidth(rehearse("h100x8", "- {fault: nvls_lost, at: 0s}")) / reference[0] < 0.9
    assert 0.95 < bus_bandwidth(rehearse("h100x8")) / reference[0] < 1.05


@pytest.mark.parametrize(
    ("preset", "low_gigabytes", "high_gigabytes"),
    [("h100x8", 240, 380), ("a100x4", 190, 240), ("b200x8", 400, 722), ("a10x2", 10, 14), ("rtx3090x4", 10, 15)],
)
@pytest.mark.parametrize("operation", FACTORS)
def test_a_healthy_node_gives_what_such_nodes_give(
    rehearse: Rehearse, preset: str, low_gigabytes: float, high_gigabytes: float, operation: str
) -> None:
    """Bus bandwidth of 64 MiB over NVLink, or over PCIe through the processor; a small call takes 7 to 21 µs."""
    rehearsal = rehearse(preset)

    assert low_gigabytes < bus_bandwidth(rehearsal, operation=operation) / 1e9 < high_gigabytes
    assert 7e-6 < seconds(rehearsal, SMALL, operation) < 21e-6


@pytest.mark.parametrize(
    ("preset", "source", "destination", "gigabytes"),
    [
        ("h100x8", 0, 7, 18 * 20.6),
        ("a100x4", 1, 2, 4 * 20.0),
        ("a10x2", 0, 1, 0.5 * 24),  # from one processor to the other
        ("rtx3090x4", 0, 1, 0.54 * 24),  # GeForce: through the host's memory although a switch is between them
        ("rtx3090x4", 0, 2, 0.54 * 24),
    ],
)
def test_a_pair_gets_what_its_way_gives(
    rehearse: Rehearse, preset: str, source: int, destination: int, gigabytes: float
) -> None:
    """Links to the switch, the links of that pair alone, or PCIe by way of the host; less the time to start."""
    assert 0.9 * gigabytes < pair_bandwidth(rehearse(preset), source, destination) / 1e9 < 1.01 * gigabytes


WITHOUT_NVLINK = "like: h100x8\nnvlink: {links: 0}\n"


def test_peers_below_a_pcie_switch_reach_each_other_through_it(own: Callable[[str], Rehearsal]) -> None:
    """Without NVLink, H100 below one switch get the whole rate, those below two get less; over the sockets least."""
    rates = [pair_bandwidth(own(WITHOUT_NVLINK), 0, other) / 1e9 for other in (1, 2, 4)]

    assert rates[0] > 1.2 * rates[1] > 1.2 * rates[2]
    assert rates[0] == pytest.approx(48, rel=0.02)


@pytest.mark.parametrize(("preset", "share"), [("h100x8", 1.0), ("a100x4", 1.0), ("a10x2", 0.92)])
def test_both_ways_at_once(rehearse: Rehearse, preset: str, share: float) -> None:
    """NVLink gives each direction all that it gives alone, PCIe a little less."""
    rehearsal = rehearse(preset)

    both = pair_bandwidth(rehearsal, 0, 1, both_ways=True)
    assert both / pair_bandwidth(rehearsal, 0, 1) == pytest.approx(share, rel=0.03)


def test_a_pcie_switch_loses_a_little_both_ways(own: Callable[[str], Rehearsal]) -> None:
    """8 % of either direction."""
    alone, both = (pair_bandwidth(own(WITHOUT_NVLINK), 0, 1, both_ways) for both_ways in (False, True))

    assert both / alone == pytest.approx(0.92, rel=0.01)


@pytest.mark.parametrize(("members", "links"), [((0, 1), 4), ((1, 3), 4), ((0, 1, 2), 8), ((0, 1, 2, 3), 12)])
def test_a_group_without_switches_has_the_links_between_its_members(
    rehearse: Rehearse, members: tuple[int, ...], links: int
) -> None:
    """Of 4 A100 with 4 links for each pair: 2 GPUs have 4 links, 3 have 8, all have 12."""
    assert bus_bandwidth(rehearse("a100x4"), members=members) == pytest.approx(links * 20e9, rel=0.1)


def test_bridged_pairs_are_held_by_pcie_between_them(own: Callable[[str], Rehearsal]) -> None:
    """A bridge joins GPUs 0 and 1: the two alone have it; four GPUs wait for the way between the bridges."""
    rehearsal = own("like: rtx3090x4\nnvlink: {remote: bridge}\n")

    assert pair_bandwidth(rehearsal, 0, 1) > 3 * pair_bandwidth(rehearsal, 1, 2)
    inside, across = (seconds(rehearsal, 1024 * MIB, "broadcast", gpus) for gpus in ((0, 1), (0, 1, 2, 3)))
    assert across / inside == pytest.approx(48 / (24 * 0.54 * 0.92), rel=0.03)


def test_small_all_reduces_go_by_tree(rehearse: Rehearse) -> None:
    """6 steps instead of 14: a small one over 8 GPUs takes less than twice that over 2, a ring would take nearly so."""
    rehearsal = rehearse("h100x8")

    assert seconds(rehearsal, SMALL) == pytest.approx(6.6e-6 + 6 * 0.6e-6, rel=0.05)
    assert seconds(rehearsal, SMALL, members=(0, 1)) == pytest.approx(6.6e-6 + 2 * 0.6e-6, rel=0.05)
    assert seconds(rehearsal, SMALL, "all_gather") == pytest.approx(6.6e-6 + 7 * 0.6e-6, rel=0.05)


@pytest.mark.parametrize(
    ("peer_access", "shares"),
    [
        (False, 6),  # up each switch's link: 4 to the other switch, and 2 that come down again
        (True, 1 + 2 / 0.54),  # of a GPU's own link: 1 through the switch, 2 by the host's memory at 54 % of its rate
    ],
)
def test_all_to_all_is_held_by_the_busiest_link(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch, peer_access: bool, shares: float
) -> None:
    """4 GPUs below 2 switches, 12 shares of a quarter each: what ways have in common carries all of theirs."""
    preset = PRESETS["rtx3090x4"]
    changed = replace(preset, model=replace(preset.model, pcie_peer_access=peer_access))
    monkeypatch.setitem(PRESETS, "rtx3090x4", changed)

    taken = seconds(rehearse("rtx3090x4"), 1024 * MIB, "all_to_all")
    assert taken == pytest.approx(shares * 256 * MIB / 24e9, rel=0.03)


@pytest.mark.parametrize(("preset", "gigabytes"), [("h100x8", 48), ("a100x4", 24), ("h200x1", 48)])
@pytest.mark.parametrize("operation", ["host_to_device", "device_to_host"])
def test_a_copy_gets_the_gpus_pcie_link(rehearse: Rehearse, preset: str, gigabytes: float, operation: str) -> None:
    """All lanes at the generation under load, not at that of an idle GPU."""
    assert copy_bandwidth(rehearse(preset), 0, operation) / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_time_grows_with_size(rehearse: Rehearse) -> None:
    """Of every operation, whatever way and protocol is taken."""
    rehearsal = rehearse("h100x8")
    for operation in FACTORS:
        taken = [seconds(rehearsal, 2**power, operation) for power in range(33)]
        assert all(larger > 0.97 * smaller for smaller, larger in pairwise(taken)), "but for their unrest"


def test_one_rank_alone_takes_the_time_of_a_start(rehearse: Rehearse) -> None:
    """There is nobody to send to."""
    for operation in FACTORS:
        assert seconds(rehearse("h200x1"), LARGE, operation) == pytest.approx(6.6e-6, rel=0.05)


def test_links_that_are_down_or_slow_take_their_share(rehearse: Rehearse) -> None:
    """9 links of 18 give half; one link at half its rate holds all links of its GPU to it."""
    down = "\n".join(f"- {{fault: nvlink_down, gpu: 3, link: {link}, at: 0s}}" for link in range(9))
    for faults in (down, "- {fault: nvlink_slow, gpu: 3, link: 2, factor: 0.5, at: 0s}"):
        healthy, struck = (bus_bandwidth(rehearse("h100x8", text), 1024 * MIB) for text in ("", faults))
        assert struck == pytest.approx(healthy / 2, rel=0.05)
        rehearsal = rehearse("h100x8", faults)
        assert pair_bandwidth(rehearsal, 3, 6) == pytest.approx(9 * 20.6e9, rel=0.1)
        assert pair_bandwidth(rehearsal, 2, 6) == pytest.approx(18 * 20.6e9, rel=0.2)


def test_a_slow_link_between_two_gpus_is_theirs_alone(rehearse: Rehearse) -> None:
    """Link 0 of GPU 0 leads to GPU 1: the pair is slow both ways, GPU 0 and its other peers are not."""
    rehearsal = rehearse("a100x4", "- {fault: nvlink_slow, gpu: 0, link: 0, factor: 0.5, at: 0s}")

    slow = {pair for pair in permutations(range(4), 2) if pair_bandwidth(rehearsal, *pair) < 60e9}
    assert slow == {(0, 1), (1, 0)}


def test_a_link_that_carries_nothing_holds_all_others(rehearse: Rehearse) -> None:
    """NCCL goes on using a link that is up: the call takes a thousand times as long, but it ends."""
    stalled = rehearse("h100x8", "- {fault: nvlink_slow, gpu: 3, link: 2, factor: 0, at: 0s}")

    assert seconds(stalled, 1024 * MIB) / seconds(rehearse("h100x8"), 1024 * MIB) == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("fault", ["p2p_broken, gpu: 2", "nvlink_down, gpu: 2", "mig_enabled, gpu: 2"])
def test_without_nvlinks_a_gpu_is_reached_over_pcie(rehearse: Rehearse, fault: str) -> None:
    """Peer access refused, all links down, or MIG: 48 GB/s at most instead of 370; the others keep theirs."""
    rehearsal = rehearse("h100x8", f"- {{fault: {fault}, at: 0s}}")

    assert pair_bandwidth(rehearsal, 2, 3) < 50e9
    assert pair_bandwidth(rehearsal, 7, 2) < 50e9
    assert pair_bandwidth(rehearsal, 0, 7) > 300e9


@pytest.mark.parametrize("fault", ["pcie_width, gpu: 2, lanes: 8", "pcie_generation, gpu: 2, generation: 3"])
def test_a_narrowed_pcie_link_halves_what_crosses_it(rehearse: Rehearse, fault: str) -> None:
    """8 lanes of 16, or a generation lower: collectives, the pairs of that GPU, and its copies."""
    healthy, struck = rehearse("rtx3090x4"), rehearse("rtx3090x4", f"- {{fault: {fault}, at: 0s}}")

    assert bus_bandwidth(struck) == pytest.approx(bus_bandwidth(healthy) / 2, rel=0.05)
    assert pair_bandwidth(struck, 2, 3) == pytest.approx(pair_bandwidth(healthy, 2, 3) / 2, rel=0.05)
    assert pair_bandwidth(struck, 0, 3) == pytest.approx(pair_bandwidth(healthy, 0, 3), rel=0.05)
    assert copy_bandwidth(struck, 2) == pytest.approx(copy_bandwidth(healthy, 2) / 2, rel=0.05)
    assert copy_bandwidth(struck, 3) == pytest.approx(copy_bandwidth(healthy, 3), rel=0.05)


def test_ranks_are_on_the_gpus_that_the_plan_names(rehearse: Rehearse) -> None:
    """By UUID: rank 0 on GPU 2, rank 1 on GPU 0; without names rank r is on the GPU of index r."""
    rehearsal = rehearse("a100x4", "- {fault: nvlink_slow, gpu: 0, link: 4, factor: 0.25, at: 0s}")
    ask, uuids = rehearsal.probes.operation_seconds, [gpu.uuid for gpu in rehearsal.node.preset.gpus]

    def rate(devices: Sequence[str], partner: int = 1) -> float:
        return LARGE / ask("send_recv", LARGE, (partner, 0), 0, 40, devices=devices)

    assert rate([uuids[2], uuids[0]]) < 25e9  # link 4 of GPU 0 leads to GPU 2
    assert rate([uuids[2], uuids[1]]) > 70e9
    assert rate(()) > 70e9
    assert rate((), partner=2) < 25e9


def calls(rehearsal: Rehearsal, first: int, number: int, rank: int = 0) -> list[float]:
    """Seconds of this number of calls in a row."""
    ask, members = rehearsal.probes.operation_seconds, range(8)
    return [ask("all_reduce", LARGE, members, rank, call) for call in range(first, first + number)]


def test_a_call_is_late_now_and_then(rehearse: Rehearse) -> None:
    """All but one in a hundred lie within 5 % of the median; one in 250 takes 1.2 to 7 times as long."""
    found = calls(rehearse("h100x8"), 1000, 10_000)
    middle = median(found)
    late = [one / middle for one in found if one > 1.2 * middle]

    assert sum(abs(one / middle - 1) > 0.05 for one in found) / len(found) < 0.01
    assert 20 < len(late) < 65
    assert 1.5 < fmean(late) < max(late) < 7
    assert max(late) > 3


def test_ranks_end_almost_together(rehearse: Rehearse) -> None:
    """The times of one call on two ranks differ by less than half a percent, late calls among them."""
    rehearsal = rehearse("h100x8")
    for one, other in zip(calls(rehearsal, 1000, 1000), calls(rehearsal, 1000, 1000, rank=7), strict=True):
        assert abs(one / other - 1) < 0.005


def test_seconds_differ(rehearse: Rehearse) -> None:
    """The same call a minute later has another unrest, and the same one at the same time the same."""
    now, again, later = (rehearse("h100x8", now=time) for time in (100.0, 100.0, 160.0))

    assert calls(now, 1000, 5) == calls(again, 1000, 5) != calls(later, 1000, 5)


def test_clocks_rise_in_the_first_calls(rehearse: Rehearse) -> None:
    """The first call takes about 40 % longer, the third 10 %; the twentieth nothing more."""
    rehearsal = rehearse("h100x8")
    found: dict[int, list[float]] = {call: [] for call in (0, 2, 20, 1000)}
    for rehearsal.now in range(200):
        for call in found:
            found[call] += calls(rehearsal, call, 1)
    usual = median(found[1000])

    assert [round(median(found[call]) / usual, 1) for call in (0, 2, 20)] == [1.4, 1.1, 1.0]


def test_what_is_not_simulated_is_refused(rehearse: Rehearse) -> None:
    """An unknown operation, a rank that does not take part."""
    ask = rehearse("a10x2").probes.operation_seconds

    with pytest.raises(ValueError, match="no simulated gather"):
        ask("gather", SMALL, (0, 1), 0, 0)
    with pytest.raises(ValueError, match="not in"):
        ask("all_reduce", SMALL, (1,), 0, 0)
