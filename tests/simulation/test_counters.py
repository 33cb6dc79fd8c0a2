"""How counters of the simulated node move with time and faults."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import pytest

from simulation.harness import Rehearsal

NOMINAL = 25e9
BACKGROUND_BYTES_PER_SECOND = 3e6
"""Of a link without a job, in each direction."""


Make: TypeAlias = Callable[..., Any]


@pytest.fixture
def hardware(rehearse: Callable[..., Rehearsal]) -> Make:
    """Makes the parts of a node whose file of faults was written when it started: ``hardware(faults, preset)``."""
    return lambda faults="", preset="h100x8": rehearse(preset, faults, 0.0).node.now()[0]


def sent(parts: Any, gpu: int, link: int, time: float) -> float:
    return float(parts.epoch(time).gpus[gpu].transmit[link].bytes_at(time))


def received(parts: Any, gpu: int, link: int, time: float) -> float:
    return float(parts.epoch(time).gpus[gpu].receive[link].bytes_at(time))


def host_sent(parts: Any, interface: str, time: float) -> int:
    """Bytes of the host over an interface."""
    return int(parts.epoch(time).interfaces[interface].sent.bytes_at(time))


def errors(parts: Any, kind: str, gpu: int, link: int | None, time: float) -> int:
    """What faults of a kind have counted on a GPU or its link since the last reset."""
    return int(parts.timeline.events(parts.timeline.counting(kind, gpu, link), gpu, time))


def test_counters_never_fall_and_keep_their_mean_rate(hardware: Make) -> None:
    """In steps of a second over ten minutes each rises by the known rate within 6 %; over the whole by the rate."""
    parts = hardware()
    series = [sent(parts, 3, 4, float(second)) for second in range(601)]
    steps = [after - before for before, after in pairwise(series)]

    assert min(steps) > 0.94 * BACKGROUND_BYTES_PER_SECOND
    assert max(steps) < 1.06 * BACKGROUND_BYTES_PER_SECOND
    assert series[-1] == pytest.approx(600 * BACKGROUND_BYTES_PER_SECOND, rel=0.002)


def test_two_objects_agree_whatever_they_were_asked_before(hardware: Make) -> None:
    """What a process has seen does not matter: the counter is a function of the time."""
    faults = "- {fault: job, at: 10s, for: 20s}\n- {fault: nvlink_down, gpu: 0, link: 1, at: 15s, for: 5s}"
    fresh, used = hardware(faults), hardware(faults)
    for second in range(60):
        sent(used, 0, 1, float(second))

    assert sent(fresh, 0, 1, 45.5) == sent(used, 0, 1, 45.5)


def test_a_job_adds_its_traffic_for_its_time(hardware: Make) -> None:
    """20 % of the nominal rate of each link while it runs, the background before and after it."""
    parts = hardware("- {fault: job, gpu: 2, nvlink_utilization: 0.2, at: 100s, for: 50s}")

    before, begin, end, after = (sent(parts, 2, 0, time) for time in (50.0, 100.0, 150.0, 200.0))
    assert begin - before == pytest.approx(50 * BACKGROUND_BYTES_PER_SECOND, rel=0.06)
    assert end - begin == pytest.approx(50 * 0.2 * NOMINAL, rel=0.06)
    assert after - end == pytest.approx(50 * BACKGROUND_BYTES_PER_SECOND, rel=0.06)
    assert sent(parts, 3, 0, 200.0) == pytest.approx(200 * BACKGROUND_BYTES_PER_SECOND, rel=0.06)
    assert [parts.epoch(time).gpus[2].busy for time in (99.9, 100.0, 149.9, 150.0)] == [False, True, True, False]


def test_a_link_that_is_down_moves_nothing_and_goes_on_where_it_stopped(hardware: Make) -> None:
    """Its counter stands still for the time of the fault; the other links are as before."""
    parts = hardware("- {fault: nvlink_down, gpu: 3, link: 5, at: 30s, until: 40s}")

    assert sent(parts, 3, 5, 39.9) == pytest.approx(sent(parts, 3, 5, 30.0))
    assert sent(parts, 3, 5, 50.0) > sent(parts, 3, 5, 40.0)
    active = parts.epoch(35.0).gpus[3].links_active
    assert [link for link, up in enumerate(active) if not up] == [5]
    assert all(parts.epoch(time).gpus[3].links_active[5] for time in (29.99, 40.0))


def test_a_slow_link_moves_its_share(hardware: Make) -> None:
    """Half of what its siblings move."""
    parts = hardware("- {fault: job, at: 0s}\n- {fault: nvlink_slow, gpu: 0, link: 2, factor: 0.5, at: 0s}")

    assert sent(parts, 0, 2, 370.0) == pytest.approx(sent(parts, 0, 3, 370.0) / 2, rel=0.01)


def test_a_counter_reset_begins_again_at_zero(hardware: Make) -> None:
    """Traffic and errors of this GPU alone."""
    parts = hardware(
        "- {fault: counter_reset, gpu: 1, at: 60s}\n- {fault: nvlink_crc, gpu: 1, link: 0, rate: 10/s, at: 0s}"
    )

    assert sent(parts, 1, 0, 59.9) > 50 * BACKGROUND_BYTES_PER_SECOND
    assert sent(parts, 1, 0, 60.0) == pytest.approx(0.0, abs=1.0)
    assert sent(parts, 0, 0, 60.0) > 50 * BACKGROUND_BYTES_PER_SECOND
    assert errors(parts, "nvlink_crc", 1, 0, 59.95) == 600
    assert errors(parts, "nvlink_crc", 1, 0, 60.05) == 0
    assert errors(parts, "nvlink_crc", 1, 0, 61.05) == 10


def test_errors_come_at_their_rate_the_first_at_once(hardware: Make) -> None:
    """Three recoveries an hour: one when the fault begins, one each 20 minutes, none after its end."""
    parts = hardware("- {fault: nvlink_recovery, gpu: 0, link: 9, rate: 3/h, at: 100s, for: 3000s}")

    counts = [errors(parts, "nvlink_recovery", 0, 9, time) for time in (99.9, 100.0, 1299.0, 1301.0, 2501.0, 9999.0)]
    assert counts == [0, 1, 1, 2, 3, 3]
    assert errors(parts, "nvlink_recovery", 0, 8, 9999.0) == 0
    assert errors(parts, "nvlink_replay", 0, 9, 9999.0) == 0


def test_a_gpu_that_comes_back_has_been_reset(hardware: Make) -> None:
    """A lost GPU moves nothing; its counters begin again when the fault ends."""
    parts = hardware("- {fault: gpu_lost, gpu: 6, at: 100s, for: 50s}")

    assert [parts.epoch(time).gpus[6].answer for time in (99.9, 100.0, 149.9, 150.0)] == ["ok", "lost", "lost", "ok"]
    assert sent(parts, 6, 0, 150.0) == pytest.approx(0.0, abs=1.0)


def test_a_reboot_with_a_card_missing_moves_the_later_indexes_down(hardware: Make) -> None:
    """Counters of every GPU and interface begin again; the card comes back with the next boot."""
    parts = hardware("- {fault: gpu_missing, gpu: 2, at: 100s, until: 200s}")

    assert parts.epoch(99.0).enumerated == (0, 1, 2, 3, 4, 5, 6, 7)
    assert parts.epoch(100.0).enumerated == (0, 1, 3, 4, 5, 6, 7)
    assert parts.epoch(200.0).enumerated == (0, 1, 2, 3, 4, 5, 6, 7)
    assert sent(parts, 0, 0, 100.0) == pytest.approx(0.0, abs=1.0)
    assert host_sent(parts, "ens1np0", 100.0) == 0


def test_the_pcie_link_is_held_down_by_its_faults(hardware: Make) -> None:
    """Width at once; a held generation shows under load, and does not raise the one of an idle GPU."""
    parts = hardware(
        "- {fault: pcie_width, gpu: 0, lanes: 8, at: 10s}\n"
        "- {fault: pcie_generation, gpu: 1, generation: 3, at: 10s}\n"
        "- {fault: job, gpu: 1, at: 20s}\n"
        "- {fault: pcie_replay, gpu: 1, rate: 2/s, at: 20s}"
    )

    assert [parts.epoch(time).gpus[0].pcie_width for time in (9.9, 10.0)] == [16, 8]
    assert [parts.epoch(time).gpus[1].pcie_generation for time in (10.0, 20.0)] == [1, 3]
    assert [errors(parts, "pcie_replay", gpu, None, 25.2) for gpu in (0, 1)] == [0, 11]


def test_an_interface_that_is_down_counts_its_changes(hardware: Make) -> None:
    """Two changes for a flap; no bytes while it has no link."""
    parts = hardware("- {fault: ethernet_down, interface: ens2np0, at: 50s, for: 10s}")

    assert [parts.carrier_changes("ens2np0", time) for time in (49.0, 50.0, 60.0)] == [1, 2, 3]
    assert [parts.epoch(time).interfaces["ens2np0"].up for time in (49.0, 50.0, 60.0)] == [True, False, True]
    stopped = host_sent(parts, "ens2np0", 50.0)
    assert host_sent(parts, "ens2np0", 59.0) == stopped > 0
    assert host_sent(parts, "ens2np0", 70.0) > stopped
