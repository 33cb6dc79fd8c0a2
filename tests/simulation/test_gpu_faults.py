"""What faults of GPUs, links and driver show through the real binding, and that they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pynvml
import pytest

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS
from simulation.asking import code_of, count, field, handle
from simulation.harness import Rehearsal

Drive: TypeAlias = Callable[..., Rehearsal]

BEFORE, DURING, AFTER = 50.0, 150.0, 250.0
PACKET_COUNTERS = {
    "malformed": 206, "buffer_overrun": 207, "receive": 208, "receive_remote": 209, "receive_general": 210,
    "link_integrity": 211, "transmit_discards": 212,
}  # fmt: skip
PCIE_COUNTERS = {
    "recoveries": 169, "correctable": 173, "naks_received": 174, "receiver": 175, "bad_tlps": 176, "naks_sent": 177,
    "bad_dllps": 178, "nonfatal": 179, "fatal": 180, "unsupported_requests": 181, "lcrc": 182, "lane": 183,
    "replay_rollovers": 95,
}  # fmt: skip
"""Counters of a fault by the number of their field in nvml.h."""
DRIVER_ERRORS = {"version_mismatch": 18, "not_loaded": 9, "no_permission": 4, "unknown": 999, "no_gpu": 0}
CALL_ERRORS = {
    "unknown": 999, "no_permission": 4, "timeout": 10, "irq_issue": 11, "operating_system": 17, "in_use": 19,
    "memory": 20, "insufficient_resources": 23, "not_ready": 27, "invalid_state": 29,
}  # fmt: skip
"""Errors by their number in nvml.h."""


def three_times(rehearsal: Rehearsal, read: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """What is read before a fault that holds from 100 s to 200 s, during it, and after it."""
    found = []
    for rehearsal.now in (BEFORE, DURING, AFTER):
        found.append(read())
    before, during, after = found
    return before, during, after


def fault(text: str) -> str:
    """A file with a fault that holds from 100 s to 200 s."""
    return f"- {{fault: {text}, at: 100s, for: 100s}}"


def fabric(index: int, structure: Callable[[], Any] = pynvml.c_nvmlGpuFabricInfo_v3_t) -> Any:  # no types
    info = structure()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle(index), pynvml.byref(info))
    return info


@pytest.mark.parametrize("name", PACKET_COUNTERS)
def test_packet_errors_move_their_counter(driver: Drive, name: str) -> None:
    """From the first event on, on this link alone; what was counted stays."""
    rehearsal = driver("b200x8", fault(f"nvlink_packet_errors, gpu: 1, link: 3, counter: {name}, rate: 0.1/s"))
    identifier = PACKET_COUNTERS[name]

    assert three_times(rehearsal, lambda: count(1, identifier, 3)) == (0, 6, 11)
    others = [count(1, other, 3) for other in PACKET_COUNTERS.values() if other != identifier]
    assert not any([*others, count(1, identifier, 2), count(0, identifier, 3)])


def test_bit_errors_show_in_ratios_symbols_and_histogram(driver: Drive) -> None:
    """The ratios are those of the fault while it holds; mass moves to the high bins and stays there."""
    rehearsal = driver("b200x8", fault("nvlink_bit_errors, gpu: 0, link: 2, rate: 1/s, raw: 3e-5, effective: 2e-11"))

    assert three_times(rehearsal, lambda: count(0, 220, 2)) == (15 << 8 | 255, 2 << 8 | 11, 15 << 8 | 255)
    assert three_times(rehearsal, lambda: count(0, 293, 2))[1] == 3 << 8 | 5
    assert three_times(rehearsal, lambda: count(0, 222, 2))[1] == 8 << 8 | 11
    assert three_times(rehearsal, lambda: count(0, 221, 2)) == (0, 51, 101)
    assert three_times(rehearsal, lambda: count(0, 219, 2)) == (0, 5, 10)
    before, during, after = three_times(rehearsal, lambda: count(0, 240, 2))
    assert before == 0 < during < after


def test_faults_of_nvlink_5_are_refused_elsewhere() -> None:
    """The error says what the node lacks; so for a fabric without switches."""
    for text, preset in (
        ("- {fault: nvlink_bit_errors, gpu: 0}", "h100x8"),
        ("- {fault: nvlink_packet_errors, gpu: 0, counter: malformed, rate: 1}", "a100x4"),
        ("- {fault: fabric_unhealthy, gpu: 0}", "a100x4"),
    ):
        with pytest.raises(ConfigError, match="of this node"):
            parse_faults(text, "faults.yaml", PRESETS[preset], 0.0, 0.0)


def test_a_recovery_that_fails_takes_the_link_down(driver: Drive) -> None:
    """Hopper counts it as a recovery; the link is inactive for as long as the fault holds."""
    rehearsal = driver("h100x8", fault("nvlink_recovery_failed, gpu: 3, link: 5"))

    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetNvLinkState(handle(3), 5)) == (1, 0, 1)
    assert three_times(rehearsal, lambda: count(3, 162, 5)) == (0, 1, 1)
    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetNvLinkErrorCounter(handle(3), 5, 1)) == (0, 1, 1)


@pytest.mark.parametrize("name", PCIE_COUNTERS)
def test_pcie_errors_move_their_counter(driver: Drive, name: str) -> None:
    """And the total of correctable errors, where they belong to it."""
    rehearsal = driver("a10x2", fault(f"pcie_errors, gpu: 1, counter: {name}, rate: 0.1/s"))

    assert three_times(rehearsal, lambda: count(1, PCIE_COUNTERS[name])) == (0, 6, 11)
    assert count(0, PCIE_COUNTERS[name]) == 0
    in_total = name in {"correctable", "receiver", "lcrc", "naks_received"}
    assert count(1, 173) == (11 if in_total else 0)


def test_speed_changes_count_as_recoveries_of_the_pcie_link(driver: Drive) -> None:
    """One when a job begins, one when it ends."""
    rehearsal = driver("h100x8", fault("job, gpu: 0"))

    assert three_times(rehearsal, lambda: count(0, 169)) == (0, 1, 2)


@pytest.mark.parametrize(
    ("reason", "bit", "duration"),
    [("sw_power_cap", 0x4, 74), ("hw_slowdown", 0x8, 75), ("sw_thermal", 0x20, 75), ("hw_thermal", 0x40, 75),
     ("hw_power_brake", 0x80, 77)],
)  # fmt: skip
def test_a_throttled_gpu_gives_the_reason_and_its_time(driver: Drive, reason: str, bit: int, duration: int) -> None:
    """Beside "idle", which it is; the clock of a busy one is lower."""
    rehearsal = driver("h100x8", fault(f"gpu_throttled, gpu: 4, reason: {reason}") + "\n- {fault: job, gpu: 5, at: 0s}")

    reasons = three_times(rehearsal, lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle(4)))
    assert reasons == (1, 1 | bit, 1)
    assert three_times(rehearsal, lambda: count(4, duration)) == (0, 50 * 10**9, 100 * 10**9)
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle(5)) == 0


def test_a_hot_gpu_is_slow_and_takes_less_power(driver: Drive) -> None:
    """Clock, temperature and power of a busy GPU under its limit, and what an idle one has."""
    rehearsal = driver("h100x8", fault("gpu_throttled, gpu: 1") + "\n- {fault: job, gpu: 1, at: 0s}")

    def now() -> tuple[int, int, int]:
        gpu = handle(1)
        return (
            pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetTemperatureV(gpu, pynvml.NVML_TEMPERATURE_GPU),
            pynvml.nvmlDeviceGetPowerUsage(gpu),
        )

    (clock, celsius, power), (slow, hot, less), after = three_times(rehearsal, now)
    assert slow < clock
    assert hot > 85 > celsius
    assert less < power < pynvml.nvmlDeviceGetEnforcedPowerLimit(handle(1))
    assert after == (clock, celsius, power)
    assert pynvml.nvmlDeviceGetClockInfo(handle(0), pynvml.NVML_CLOCK_SM) < slow
    assert pynvml.nvmlDeviceGetTemperature(handle(0), pynvml.NVML_TEMPERATURE_GPU) < celsius


@pytest.mark.parametrize(
    ("phase", "use", "watts", "links_move", "pcie_moves"),
    [
        ("phase: compute", 100, 665, False, False),
        ("phase: communicate", 100, 420, True, True),
        ("phase: checkpoint", 0, 140, False, True),
        ("phase: compile", 0, 119, False, False),
        ("phase: evaluate", 97, 455, False, False),
        ("phase: data_stall", 0, 126, False, False),
        ("phase: hang", 100, 140, False, False),
        ("phase: hang, power: 0.3", 100, 210, False, False),
    ],
)
def test_a_phase_takes_the_place_of_what_a_job_does(
    driver: Drive, phase: str, use: int, watts: int, links_move: bool, pcie_moves: bool
) -> None:
    """Use, power and traffic are those of the phase; after it those of the job, and without a job nothing."""
    both = "\n- {fault: job, gpu: 1, power: 0.8, at: 0s}\n- {fault: job, gpu: 2, at: 0s}"
    rehearsal = driver("h100x8", fault(f"job_phase, {phase}") + both)

    def now() -> tuple[int, int]:
        return (
            pynvml.nvmlDeviceGetUtilizationRates(handle(1)).gpu,
            round(pynvml.nvmlDeviceGetPowerUsage(handle(1)) / 1000),
        )

    before, during, after = three_times(rehearsal, now)
    assert before == after == (97, 560)
    assert during == (use, watts)
    rehearsal.now = DURING
    assert pynvml.nvmlDeviceGetUtilizationRates(handle(0)).gpu == 0
    moved = rehearsal.node.now()[0].epoch(DURING).gpus[1]
    assert (moved.transmit[0].rate > 1e8, moved.pcie_receive.rate > 5e8) == (links_move, pcie_moves)


def test_energy_is_power_times_time(driver: Drive) -> None:
    """mJ since the last reset."""
    driver("h100x8", now=370.0)

    milliwatts = pynvml.nvmlDeviceGetPowerUsage(handle())
    assert count(0, 83) == pytest.approx(milliwatts * 370, rel=0.01)


def test_a_recovery_action_is_told(driver: Drive) -> None:
    """Field 230 for as long as it is needed."""
    rehearsal = driver("h100x8", fault("recovery_needed, gpu: 4, action: drain_and_reset"))

    assert three_times(rehearsal, lambda: count(4, 230)) == (0, 4, 0)


def test_mig_makes_links_look_down(driver: Drive) -> None:
    """The mode is told; the links of the other GPUs stay up, also where they lead to this one."""
    rehearsal = driver("a100x4", fault("mig_enabled, gpu: 0"))

    modes = three_times(rehearsal, lambda: pynvml.nvmlDeviceGetMigMode(handle(0)))
    assert modes == ([0, 0], [1, 1], [0, 0])
    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetNvLinkState(handle(0), 0)) == (1, 0, 1)
    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetNvLinkState(handle(1), 0)) == (1, 1, 1)


@pytest.mark.parametrize(("value", "shown"), [("zero", 0), ("ones", 2**64 - 1)])
def test_a_blank_counter_hides_traffic(driver: Drive, value: str, shown: int) -> None:
    """Zero or all bits set, and the true count afterwards."""
    rehearsal = driver("h100x8", fault(f"counter_blank, gpu: 4, value: {value}"))

    before, during, after = three_times(rehearsal, lambda: count(4, 138, 0))
    assert during == shown
    assert 0 < before < after < 2**40
    assert count(3, 138, 0) > 0


def test_a_stale_counter_stands_still(driver: Drive) -> None:
    """And goes on afterwards with what it missed; error counters move as ever."""
    rehearsal = driver("h100x8", fault("counter_stale, gpu: 4"))

    before, during, after = three_times(rehearsal, lambda: count(4, 138, 0) * 1024)
    assert (before, during, after) == tuple(pytest.approx(3e6 * seconds, rel=0.05) for seconds in (50, 100, 250))
    rehearsal.now = 199.0
    assert count(4, 138, 0) * 1024 == during


@pytest.mark.parametrize(
    ("check", "shift", "good", "bad"),
    [("bandwidth", 0, 2, 1), ("route_recovery", 2, 2, 1), ("route", 4, 2, 1), ("access_timeout", 6, 2, 1),
     ("configuration", 8, 1, 2), ("partition", 12, 1, 2), ("connection", 14, 1, 2)],
)  # fmt: skip
def test_a_fabric_that_is_unhealthy_says_why(driver: Drive, check: str, shift: int, good: int, bad: int) -> None:
    """In the health mask of versions 2 and 3; the fabric stays registered."""
    rehearsal = driver("b200x8", fault(f"fabric_unhealthy, gpu: 2, check: {check}"))

    assert three_times(rehearsal, lambda: fabric(2).healthMask >> shift & 3) == (good, bad, good)
    assert fabric(2).healthMask == fabric(2, pynvml.c_nvmlGpuFabricInfo_v2_t).healthMask
    assert (fabric(2).state, fabric(2).status) == (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, 0)
    assert three_times(rehearsal, lambda: fabric(2).healthSummary) == (1, 3 if check == "bandwidth" else 2, 1)


def test_a_registration_that_does_not_complete(driver: Drive) -> None:
    """The state stays "in progress"; without it no peer is reached over NVLink."""
    rehearsal = driver("h100x8", fault("fabric_unhealthy, gpu: 2, check: registration"))

    assert three_times(rehearsal, lambda: fabric(2).state) == (3, 2, 3)
    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetP2PStatus(handle(2), handle(0), 2)) == (0, 5, 0)


def test_fabric_information_of_others(driver: Drive) -> None:
    """H100 gives no summary; before Hopper there is nothing; a version that it does not know is refused."""
    driver("h100x8")
    assert fabric(0).healthSummary == pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED
    wrong = pynvml.c_nvmlGpuFabricInfo_v3_t()
    wrong.version = 0x09000028
    code = code_of(pynvml.nvmlDeviceGetGpuFabricInfoV, handle(0), pynvml.byref(wrong))
    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH

    driver("a100x4")
    assert code_of(fabric, 0) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_peer_access_follows_the_links(driver: Drive) -> None:
    """Over NVLink where active links join two GPUs; refused while the driver refuses it, although they are active."""
    rehearsal = driver("h100x8", fault("p2p_broken, gpu: 2"))

    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetP2PStatus(handle(0), handle(2), 2)) == (0, 5, 0)
    assert three_times(rehearsal, lambda: pynvml.nvmlDeviceGetP2PStatus(handle(0), handle(1), 2)) == (0, 0, 0)
    rehearsal.now = DURING
    assert pynvml.nvmlDeviceGetNvLinkState(handle(2), 0) == 1

    driver("a100x4", "\n".join(f"- {{fault: nvlink_down, gpu: 0, link: {link}, at: 0s}}" for link in range(4)))
    assert [pynvml.nvmlDeviceGetP2PStatus(handle(0), handle(other), 2) for other in (1, 2, 3)] == [5, 0, 0]

    driver("rtx3090x4")
    assert [pynvml.nvmlDeviceGetP2PStatus(handle(0), handle(1), index) for index in (0, 2)] == [1, 5]


def test_pcie_throughput_is_what_a_job_moves(driver: Drive) -> None:
    """KB/s: the background, and under a job a share of the link."""
    driver("h100x8", "- {fault: job, gpu: 1, pcie_utilization: 0.5, at: 0s}")

    assert pynvml.nvmlDeviceGetPcieThroughput(handle(0), pynvml.NVML_PCIE_UTIL_TX_BYTES) == 200
    busy = pynvml.nvmlDeviceGetPcieThroughput(handle(1), pynvml.NVML_PCIE_UTIL_RX_BYTES)
    assert busy * 1000 == pytest.approx(0.5 * 16 * 3.938e9, rel=0.001)


def test_a_job_keeps_its_gpu_busy_for_the_share_that_it_is_given(driver: Drive) -> None:
    """Percent of the time; nearly all of it where nothing is said, and none without a job."""
    driver("h100x8", "- {fault: job, gpu: 1, gpu_utilization: 0.45, at: 0s}\n- {fault: job, gpu: 2, at: 0s}")

    assert [pynvml.nvmlDeviceGetUtilizationRates(handle(gpu)).gpu for gpu in range(3)] == [0, 45, 97]


def test_the_bandwidth_mode_came_with_blackwell(driver: Drive) -> None:
    """Full there, refused before."""
    mode = pynvml.c_nvmlNvlinkGetBwMode_v1_t()
    driver("b200x8")
    assert code_of(pynvml.nvmlDeviceGetNvlinkBwMode, handle(), pynvml.byref(mode)) == 0
    assert (mode.bIsBest, mode.bwMode) == (1, 0)

    driver("h100x8")
    refused = code_of(pynvml.nvmlDeviceGetNvlinkBwMode, handle(), pynvml.byref(mode))
    assert refused == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_confidential_computing_is_told(driver: Drive) -> None:
    """For the whole node; not known before Hopper."""
    rehearsal = driver("h100x8", fault("confidential_computing"))
    assert three_times(rehearsal, lambda: pynvml.nvmlSystemGetConfComputeState().ccFeature) == (0, 1, 0)

    driver("a100x4")
    assert code_of(pynvml.nvmlSystemGetConfComputeState) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_driver_that_is_loaded_anew_ends_sessions_and_counts_from_zero(driver: Drive) -> None:
    """An open session is uninitialised for good, a new one is refused until the driver is back."""
    rehearsal = driver("h100x8", fault("driver_reload"), now=BEFORE)
    gpu = handle(3)
    assert count(3, 138, 0) > 0

    rehearsal.now = DURING
    assert code_of(pynvml.nvmlDeviceGetName, gpu) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED

    rehearsal.now = 200.0
    assert code_of(pynvml.nvmlDeviceGetName, gpu) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()
    assert field(3, 138, 0) == (0, 0)
    rehearsal.now = 210.0
    assert count(3, 138, 0) * 1024 == pytest.approx(10 * 3e6, rel=0.1)


@pytest.mark.parametrize(("error", "code"), DRIVER_ERRORS.items())
def test_a_driver_that_cannot_be_used_ends_sessions_and_refuses_new_ones(driver: Drive, error: str, code: int) -> None:
    """With the code of the error; one without GPUs opens and counts none. When the fault ends it can be opened."""
    rehearsal = driver("h100x8", fault(f"driver_unusable, error: {error}"), now=BEFORE)
    gpu = handle(3)

    rehearsal.now = DURING
    assert code_of(pynvml.nvmlDeviceGetName, gpu) == pynvml.NVML_ERROR_UNINITIALIZED
    if code:
        assert code_of(pynvml.nvmlInit) == code
    else:
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 0

    rehearsal.now = AFTER
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 8


@pytest.mark.parametrize(("error", "code"), CALL_ERRORS.items())
def test_the_calls_on_one_gpu_fail_with_an_error(driver: Drive, error: str, code: int) -> None:
    """All of them while the fault holds, and none on another GPU."""
    rehearsal = driver("h100x8", fault(f"gpu_calls_fail, gpu: 3, error: {error}"))

    assert three_times(rehearsal, lambda: code_of(pynvml.nvmlDeviceGetName, handle(3))) == (0, code, 0)
    rehearsal.now = DURING
    assert code_of(pynvml.nvmlDeviceGetName, handle(2)) == 0


def test_a_share_of_the_calls_fails(driver: Drive) -> None:
    """Spread evenly."""
    driver("h100x8", "- {fault: gpu_calls_fail, gpu: 3, share: 0.125, at: 0s}", now=DURING)
    gpu = handle(3)

    assert [code_of(pynvml.nvmlDeviceGetName, gpu) for _ in range(40)].count(pynvml.NVML_ERROR_UNKNOWN) == 5
