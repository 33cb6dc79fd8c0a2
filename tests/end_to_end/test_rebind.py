"""A GPU that is bound to the driver again, by somebody who had handed it on, and a driver that can be opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from support.simulated_daemon import SimulatedDaemon, simulated

UNBOUND_AT = 700
"""Seconds since the boot."""
GPU = 2


def read_of(daemon: SimulatedDaemon, address: str) -> tuple[dict[str, float], bool]:
    """The states of all GPUs by address, and whether the links of one are read."""
    page = daemon.exposed()
    states = {labels["pci_bus_id"]: value for labels, value in page.samples("commwatch_gpu_state")}
    links = {labels["pci_bus_id"] for labels, _ in page.samples("commwatch_nvlink_link_state")}
    return states, address in links


@pytest.mark.parametrize(("seconds", "not_ready", "within"), [(41, 0, 15), (48, 0, 15), (48, 12, 32)])
def test_a_gpu_that_is_bound_again_is_read_again(seconds: int, not_ready: int, within: int, tmp_path: Path) -> None:
    """It is missing by its address while it is unbound, and read at the latest 15 s after it is bound again, or 32 s
    where its calls fail for the first 12 s. The other GPUs, whose indexes move twice, are well all the time."""
    preset = PRESETS["a100x4"]
    address = preset.gpus[GPU].pci_address
    bound_at = UNBOUND_AT + seconds
    faults = f"- {{fault: gpu_unbound, gpu: {GPU}, at: {UNBOUND_AT}s, until: {bound_at}s}}\n"
    if not_ready:
        faults += f"- {{fault: gpu_calls_fail, gpu: {GPU}, at: {bound_at}s, for: {not_ready}s}}\n"
    well = dict.fromkeys((one.pci_address for one in preset.gpus), 0.0)
    with simulated(preset, tmp_path, faults=faults, time_now=UNBOUND_AT - 20.0) as daemon:
        seen = {}
        for moment in (*range(UNBOUND_AT - 5, bound_at - 1, 5), *range(bound_at - 1, bound_at + within + 10)):
            daemon.step_to(float(moment))
            seen[moment] = read_of(daemon, address)
            if moment == bound_at - 1:
                assert ("gpu_missing", f"gpu/{address}") in {one.key for one in daemon.verdict.findings}

    for moment, read in seen.items():
        if moment < UNBOUND_AT or moment >= bound_at + within:
            assert read == (well, True), moment
        elif UNBOUND_AT + 10 <= moment < bound_at:
            assert read == ({**well, address: 4.0}, False), moment
        assert {**read[0], address: 0.0} == well, moment


def test_a_driver_that_cannot_be_opened_says_why_and_is_opened_again(tmp_path: Path) -> None:
    """The reason is that of the opening, and the repair is seen without a restart."""
    fault = "- {fault: driver_unusable, error: version_mismatch, at: 0s, until: 60s}"
    found = {}
    with simulated("a10x2", tmp_path, faults=fault) as daemon:
        for seconds in range(15, 166, 15):
            daemon.step_to(float(seconds))
            found[seconds] = {one.code for one in daemon.verdict.findings if one.code.startswith("driver_")}

    assert (found[45], found[165]) == ({"driver_mismatch"}, set())
    assert set().union(*found.values()) == {"driver_mismatch"}
