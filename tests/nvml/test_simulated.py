"""The NVML source over the simulated driver library, with the real binding between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pynvml
import pytest

from commwatch.readings import Batch
from commwatch.sources.nvml.source import NvmlSource
from commwatch_exporters.snapshot import Value
from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets import PRESETS
from nvml.harness import values_of

COLLECTORS = ("identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie")
STARTED_AT = 1_800_000_000.0


class Simulated:
    """A source over a simulated node; both have the clock of the test."""

    def __init__(self, preset: str, faults: Path | None) -> None:
        self.now = 0.0
        """Seconds since the node started."""
        install(SimulatedNode(preset, faults, STARTED_AT, lambda: STARTED_AT + self.now))
        self.source = NvmlSource(lambda: self.now)

    def open(self) -> Simulated:
        self.source.open(lambda device: None, frozenset(), None)
        return self

    def collect(self, collector: str) -> Batch:
        return self.source.collect(collector)

    def read(self, collector: str) -> dict[tuple[str, ...], Value]:
        return values_of(self.collect(collector))


Simulate: TypeAlias = "Callable[..., Simulated]"


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Simulate]:
    """Makes a source over a simulated node with the faults given as YAML; closed at the end."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    made: list[Simulated] = []

    def make(preset: str, faults: str = "") -> Simulated:
        file = tmp_path / "faults.yaml"
        file.write_text(faults)
        made.append(Simulated(preset, file if faults else None))
        return made[-1]

    yield make
    for one in made:
        one.source.close()


def labels_of(preset: str, index: int) -> tuple[str, str]:
    return str(index), PRESETS[preset].gpus[index].pci_address


def test_every_link_of_eight_h100_is_read(simulate: Simulate) -> None:
    """State, sent and received bytes of 144 links, all active."""
    node = simulate("h100x8").open()
    node.now = 100.0

    values = node.read("nvlink")

    assert len(values) == 8 * 18 * 3
    for index in range(8):
        for link in range(18):
            place = (*labels_of("h100x8", index), str(link))
            assert values[("nvlink_link_state", *place)] == 1
            for direction in ("transmit", "receive"):
                count = values[(f"nvlink_{direction}_bytes_total", *place)]
                assert isinstance(count, int)
                assert count > 0
                assert count % 1024 == 0


def test_bytes_grow_as_fast_as_the_job_sends(simulate: Simulate) -> None:
    """A fifth of 25 GB/s for ten seconds is 50 GB, give or take the unrest of a healthy node."""
    node = simulate("h100x8", "- {fault: job, at: 0s, nvlink_utilization: 0.2}").open()
    series = ("nvlink_transmit_bytes_total", *labels_of("h100x8", 3), "7")
    node.now = 50.0
    before = node.read("nvlink")[series]
    node.now = 60.0
    after = node.read("nvlink")[series]

    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(50e9, rel=0.06)


def test_the_identity_of_an_h100_node(simulate: Simulate) -> None:
    """Names, versions and speeds as the driver gives them; NVLink 5 counters are unsupported."""
    values = simulate("h100x8").open().read("identity")
    gpu = PRESETS["h100x8"].gpus[2]
    labels = labels_of("h100x8", 2)
    assert gpu.serial is not None

    assert values[("gpu_info", *labels, gpu.uuid, gpu.serial, "NVIDIA H100 80GB HBM3", "Hopper")] == 1
    assert values[("software_info", "580.95.05", "13.580.95.05", "13.0")] == 1
    assert values[("nvlink_links", *labels)] == 18
    assert values[("nvlink_link_speed_bytes_per_second", *labels, "17")] == 26_562_000_000
    remotes = {key[4:7] for key in values if key[0] == "nvlink_info"}
    assert remotes == {("4.0", "switch", address) for address in PRESETS["h100x8"].nvswitches}
    states = {key[2]: value for key, value in values.items() if key[0] == "counters_state"}
    assert states["nvlink_get_state"] == 0
    assert states["nvlink_throughput_data_tx"] == 0
    assert 0 in (states["nvlink_error_dl_replay"], states["nvlink_error_counter_dl_replay"])
    assert states["nvlink_count_xmit_bytes"] == 1
    assert states["nvlink_count_symbol_ber"] == 1


def test_an_a10_has_pcie_and_no_nvlink(simulate: Simulate) -> None:
    """What it does not have is absent, and none of it is a failure."""
    node = simulate("a10x2").open()
    batches = {collector: node.collect(collector) for collector in COLLECTORS}
    labels = labels_of("a10x2", 1)

    assert all(batch.absences == [] for batch in batches.values())
    assert values_of(batches["nvlink"]) == {}
    assert values_of(batches["nvlink_errors"]) == {}
    assert values_of(batches["identity"])[("nvlink_links", *labels)] == 0
    pcie = values_of(batches["pcie"])
    of_gpu = {key[0]: value for key, value in pcie.items() if key[1:] == labels}
    assert of_gpu.items() >= {
        "pcie_link_generation": 1, "pcie_link_generation_max": 4, "pcie_gpu_link_generation_max": 4,
        "pcie_link_width_lanes": 16, "pcie_link_width_max_lanes": 16, "pcie_replays_total": 0,
        "pcie_replay_rollovers_total": 0,
    }.items()  # fmt: skip
    assert {value for name, value in of_gpu.items() if name.endswith("_total")} == {0}


def test_an_rtx_3090_without_a_bridge_has_inactive_links(simulate: Simulate) -> None:
    """Their state is 0, and what an inactive link does not tell is absent and no failure."""
    node = simulate("rtx3090x4").open()
    batches = {collector: node.collect(collector) for collector in COLLECTORS}
    labels = labels_of("rtx3090x4", 0)

    assert all(batch.absences == [] for batch in batches.values())
    links = values_of(batches["nvlink"])
    assert {value for key, value in links.items() if key[0] == "nvlink_link_state"} == {0}
    assert {value for key, value in links.items() if key[0] != "nvlink_link_state"} == {None}
    identity = values_of(batches["identity"])
    assert identity[("nvlink_links", *labels)] == 4
    assert identity[("counters_state", "nvml", "nvlink_throughput_data_tx")] is None
    uuid = PRESETS["rtx3090x4"].gpus[0].uuid
    assert identity[("gpu_info", *labels, uuid, "", "NVIDIA GeForce RTX 3090", "Ampere")] == 1


def test_a_link_that_goes_down_keeps_its_state_and_loses_its_bytes(simulate: Simulate) -> None:
    """The count does not freeze, and it comes back with the link."""
    node = simulate("h100x8", "- {fault: nvlink_down, gpu: 3, link: 7, at: 10s, for: 10s}").open()
    place = (*labels_of("h100x8", 3), "7")
    for now, state in ((9.0, 1), (10.0, 0), (19.0, 0), (20.0, 1)):
        node.now = now
        batch = node.collect("nvlink")
        values = values_of(batch)
        assert batch.absences == []
        assert values[("nvlink_link_state", *place)] == state
        assert (values[("nvlink_transmit_bytes_total", *place)] is None) == (state == 0)
        assert values[("nvlink_transmit_bytes_total", *place[:2], "8")] is not None


@pytest.mark.parametrize(
    ("fault", "metric", "value"),
    [
        ("nvlink_crc, link: 2, rate: 10/s", "nvlink_crc_flit_errors_total", 51),
        ("nvlink_replay, link: 2, rate: 1/s", "nvlink_replay_errors_total", 6),
        ("nvlink_recovery, link: 2, rate: 1/s", "nvlink_recovery_errors_total", 6),
    ],
)
def test_link_errors_are_counted_on_their_link(simulate: Simulate, fault: str, metric: str, value: int) -> None:
    """On the link that has them and on no other."""
    node = simulate("h100x8", f"- {{fault: {fault}, gpu: 1, at: 5s}}").open()
    node.now = 10.0

    values = node.read("nvlink_errors")

    assert values[(f"{metric}", *labels_of("h100x8", 1), "2")] == value
    assert sum(number or 0 for number in values.values()) == value


def test_a_narrow_pcie_link_and_its_replays(simulate: Simulate) -> None:
    """Width and replays come from the driver, the generation of a busy GPU is its highest."""
    node = simulate(
        "h100x8",
        "- {fault: job, at: 0s}\n"
        "- {fault: pcie_width, gpu: 0, lanes: 8, at: 0s}\n"
        "- {fault: pcie_replay, gpu: 0, rate: 2/s, at: 0s}",
    ).open()
    node.now = 10.0

    pcie, use = node.read("pcie"), {**node.read("gpu"), **node.read("processes")}

    labels = labels_of("h100x8", 0)
    assert pcie[("pcie_link_width_lanes", *labels)] == 8
    assert pcie[("pcie_link_width_max_lanes", *labels)] == 16
    assert pcie[("pcie_link_generation", *labels)] == 5
    assert pcie[("pcie_replays_total", *labels)] == 21
    assert use[("gpu_busy", *labels)] == 1
    assert use[("gpu_compute_processes", *labels)] == 1


def test_an_idle_gpu_is_not_busy(simulate: Simulate) -> None:
    """No process and no work, both read."""
    node = simulate("a10x2").open()
    values = {**node.read("gpu"), **node.read("processes")}

    for name in ("gpu_busy", "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_compute_processes"):
        assert {value for key, value in values.items() if key[0] == name} == {0}
    assert {value for key, value in values.items() if key[0] == "gpu_performance_state"} == {8}


@pytest.mark.parametrize(("fault", "reason"), [("gpu_lost", "lost"), ("gpu_reset_required", "reset_required")])
def test_a_gpu_that_is_gone_stays_gone_until_the_source_is_opened_again(
    simulate: Simulate, fault: str, reason: str
) -> None:
    """Even when the driver would answer again, its old handle is not used; a new opening reads it."""
    collector = "nvlink"
    node = simulate("h100x8", f"- {{fault: {fault}, gpu: 5, at: 10s, until: 20s}}").open()
    address = PRESETS["h100x8"].gpus[5].pci_address
    whole = node.read(collector)
    for now in (10.0, 30.0):
        node.now = now
        batch = node.collect(collector)
        assert [(one.device, one.reason) for one in batch.absences] == [(address, reason)]
        assert set(values_of(batch)) == {key for key in whole if address not in key}
    node.source.close()

    assert set(node.open().read(collector)) == set(whole)


def test_a_gpu_that_is_lost_from_the_start_goes_by_its_index(simulate: Simulate) -> None:
    """It gets no handle, so its address cannot be asked for; the others are read."""
    node = simulate("a10x2", "- {fault: gpu_lost, gpu: 0, at: 0s}").open()

    batch = node.collect("pcie")

    assert [(one.device, one.reason) for one in batch.absences] == [("index:0", "lost")]
    assert [one.device for one in batch.readings] == [PRESETS["a10x2"].gpus[1].pci_address]


def test_a_symbol_that_the_library_lacks_is_an_absent_series(simulate: Simulate) -> None:
    """The binding says that the function was not found."""
    node = simulate("a10x2")
    delattr(pynvml.nvmlLib, "nvmlDeviceGetGpuMaxPcieLinkGeneration")

    batch = node.open().collect("pcie")

    assert batch.absences == []
    names = {key[0] for key in values_of(batch)}
    assert "pcie_gpu_link_generation_max" not in names
    assert "pcie_link_generation_max" in names
