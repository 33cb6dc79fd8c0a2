"""Nodes for tests of the node's page: an HGX board with 144 NVLinks and 8 RDMA ports, healthy and in trouble."""

from __future__ import annotations

from commwatch.findings.api_documents import closed_record
from commwatch.findings.finding import Component, Match
from commwatch.findings.register import Closed
from commwatch.findings.score.records import Loss, Part, PartName, Score
from commwatch.findings.verdict import Verdict
from commwatch.probes.results.record import LatencyCourse
from commwatch.probes.results.records import ProbeStatus
from commwatch.views.heatmap.grid import View
from commwatch.views.node_page.records import (
    CollectorStatus,
    Fact,
    Mark,
    Status,
)
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.findings import cause, finding
from support.pages import snapshot_of

TIME = 1.8e9
"""Of the page, seconds since 1970."""
SLOTS = tuple(f"0000:{bus}:00.0" for bus in ("17", "18", "3a", "3b", "9a", "9b", "ba", "bb"))
SWITCHES = tuple(f"0000:{bus}:00.0" for bus in ("08", "09", "0a", "0b"))
LINKS = 18
DOWN = (3, 7)
"""GPU and NVLink that are down on the faulty node."""
LOST = 5
"""GPU that is lost there."""
_BRANCHES = ("14", "37", "97", "b7")


def hgx(*, faulty: bool = False, use: float = 0.3) -> Snapshot:
    """What the collectors know of the board.

    Args:
        faulty: a link is down, another makes errors, a GPU is lost, an adapter is down, a PCIe link is narrow.
        use: share of the NVLinks' capacity that the first GPU uses; the others use a little less each.
    """
    values: dict[Series, Value] = {("commwatch_simulated", ()): 1}
    for number, bus in enumerate(_BRANCHES):
        numa = str(number // 2)
        tree = [(f"0000:{bus}:01.0", "root_port", f"pci0000:{bus}"),
                (f"0000:{bus}:02.0", "switch_port", f"0000:{bus}:01.0")]  # fmt: skip
        adapters = [f"0000:{bus}:1{one}.0" for one in range(2)]
        ends = [*((slot, "gpu") for slot in SLOTS[2 * number : 2 * number + 2]), *((one, "nic") for one in adapters)]
        for place, (address, role) in enumerate(ends):
            port = f"0000:{bus}:0{place + 3}.0"
            tree += [(port, "switch_port", f"0000:{bus}:02.0"), (address, role, port)]
        for device, role, parent in tree:
            values["commwatch_pcie_device_info", (device, role, parent, numa, "0x10de", "0x2330")] = 1
        for place, address in enumerate(adapters):
            _adapter(values, 2 * number + place, address, up=not (faulty and (number, place) == (2, 1)))
    for gpu, slot in enumerate(SLOTS):
        _gpu(values, gpu, slot, use * (1 - gpu / 20), faulty)
    for name, up in (("ens11f0np0", 1), ("ens11f1np1", int(not faulty))):
        values["commwatch_ethernet_info", (name, "0000:d7:00.0", "mlx5_core", "")] = 1
        values["commwatch_ethernet_carrier", (name,)] = up
        values["commwatch_ethernet_speed_bytes_per_second", (name,)] = 12_500_000_000
    return snapshot_of(values)


def _adapter(values: dict[Series, Value], number: int, address: str, *, up: bool) -> None:
    port = (f"mlx5_{number}", "1")
    values["commwatch_rdma_port_info", (*port, "InfiniBand", "0x1", "0x1", "28.39.1002", "MT4129", address, "")] = 1
    values["commwatch_rdma_port_state", port] = 4 if up else 1
    values["commwatch_rdma_port_speed_bytes_per_second", port] = 50_000_000_000 if up else None
    values["commwatch_rdma_port_transmit_utilization_ratio", port] = 0.11 if up else 0.0
    values["commwatch_rdma_port_receive_utilization_ratio", port] = 0.12 if up else 0.0
    values["commwatch_rdma_port_flaps_total", port] = 0 if up else 1


def _gpu(values: dict[Series, Value], gpu: int, slot: str, use: float, faulty: bool) -> None:
    labels = (str(gpu), slot)
    lost = faulty and gpu == LOST
    values["commwatch_gpu_info", (*labels, f"GPU-{gpu}", "0", "NVIDIA H100 80GB HBM3", "hopper")] = 1
    values["commwatch_gpu_state", labels] = 2 if lost else 0
    for link in range(LINKS):
        values["commwatch_nvlink_link_expected", (*labels, str(link))] = 1
    if lost:
        return
    values["commwatch_gpu_busy", labels] = int(use > 0.01)
    values["commwatch_pcie_link_generation", labels] = 5
    values["commwatch_pcie_link_width_lanes", labels] = 8 if faulty and gpu == 1 else 16
    values["commwatch_pcie_link_width_expected_lanes", labels] = 16
    values["commwatch_pcie_link_degraded", (*labels, "width")] = int(
        values["commwatch_pcie_link_width_lanes", labels] != 16
    )
    values["commwatch_nvlink_transmit_utilization_ratio", labels] = use
    values["commwatch_nvlink_receive_utilization_ratio", labels] = use * 0.97
    values["commwatch_pcie_transmit_utilization_ratio", labels] = 0.125
    values["commwatch_pcie_receive_utilization_ratio", labels] = 0.004
    for link in range(LINKS):
        down = faulty and (gpu, link) == DOWN
        far = ("", "", "") if down else ("switch", SWITCHES[link % 4], str(link))
        values["commwatch_nvlink_link_state", (*labels, str(link))] = int(not down)
        values["commwatch_nvlink_info", (*labels, str(link), "4.0", *far)] = 1


_LINK = Component("nvlink", f"{SLOTS[3]}/7", "GPU3 link 7")
_GPU = Component("gpu", SLOTS[3], "GPU3")
_FINDINGS = (
    finding("gpu_lost", Component("gpu", SLOTS[LOST], f"GPU{LOST}"), TIME - 184),
    finding("nvlink_down", _LINK, TIME - 4020, causes=(cause("nvlink_recovering", _LINK), cause("xid_fabric", _GPU))),
    finding("nvlink_bit_errors", Component("nvlink", f"{SLOTS[0]}/2", "GPU0 link 2"), TIME - 7300),
    finding("ethernet_paused", Component("interface", "ens11f1np1"), TIME - 90_000),
)
_MARKS = {
    f"gpu/{SLOTS[LOST]}": Mark("critical", "A GPU is lost to the driver"),
    f"nvlink/{SLOTS[3]}/7": Mark("critical", "An expected NVLink is down"),
    f"nvlink/{SLOTS[0]}/2": Mark("warning", "An NVLink makes CRC errors"),
    "rdma_port/mlx5_5/1": Mark("critical", "An RDMA port that was active, or whose equals are, is down"),
}
_CLOSED = (
    closed_record(
        Closed(
            Match("probe_bandwidth_short", Component("probe", "all_reduce", "probe all_reduce_between_all_eight"), ()),
            TIME - 60,
            TIME,
            "no longer measured",
        )
    ),
)


def status(*, faulty: bool = False) -> Status:
    """What the daemon says of the board."""
    return Status(
        version="1.2.3",
        time=TIME,
        name="node-17",
        simulated="h100x8ndr",
        verdict=Verdict("Critical", f"{_FINDINGS[0].words}; and 2 more")
        if faulty else Verdict("OK", "no warning or critical finding"),
        facts=(Fact("Model", "8 × NVIDIA H100 80GB HBM3"),
               Fact("NVLinks up", f"{143 if faulty else 144} of 144", is_short=faulty),
               Fact("NVIDIA driver, NVML", "580.95.05, 13.580.95.05")),
        findings=_FINDINGS if faulty else (),
        closed=_CLOSED if faulty else (),
        marks=_MARKS if faulty else {},
        score=_score(faulty=faulty),
        pairs=pairs(faulty=faulty),
        collectors=tuple(_collectors(faulty=faulty)),
        probes=tuple(_probes(faulty=faulty)),
    )  # fmt: skip


def _score(*, faulty: bool) -> Score:
    names: tuple[PartName, ...] = ("bandwidth", "latency", "balance", "stability")
    values = (0.61, 0.92, 0.74, None) if faulty else (0.99, 1.0, 0.97, 1.0)
    parts = tuple([Part(name, 0.25, value, ()) for name, value in zip(names, values, strict=True)])
    losses = (Loss("bandwidth", 0.2, 0.58, "GPU3 to GPU5", "214 GB/s of 371 GB/s"),) if faulty else ()
    return Score(0.71, "needs work", parts, losses) if faulty else Score(0.99, "excellent", parts, losses)


def pairs(*, faulty: bool = False, count: int = 8) -> View:
    """A matrix in percent; on the faulty node GPU3 is slow."""
    ends = [(source, target) for source in range(count) for target in range(count) if source != target]
    slow = {pair: "A" for pair in ends if faulty and 3 in pair}
    return View(
        heading="Bandwidth, one way, in percent of what is expected",
        facts=("16 MiB a message", "measured a minute ago"),
        unit="%",
        names=tuple([f"GPU{one}" for one in range(count)]),
        numbers={pair: 52.0 if pair in slow else 98.0 for pair in ends},
        low=0.0,
        high=100.0,
        marks=slow,
        notes=("A  GPU3 is slow in every pair (confidence 97 %)",) if faulty else (),
    )


def _probes(*, faulty: bool) -> list[ProbeStatus]:
    usual = [18.1e-6, 18.4e-6, 17.9e-6, 18.2e-6, 18.6e-6, 18.0e-6, 18.3e-6] * 3
    spikes = [31.0e-6, 42.0e-6, 38.5e-6] if faulty else [18.2e-6] * 3
    course = LatencyCourse((*usual, *spikes), 18.2e-6, 27.3e-6)
    ended = "failed: setup_timeout (rank 5 did not answer)" if faulty else "latency 18.2 µs, bus bandwidth 358 GB/s"
    return [
        ProbeStatus("all_reduce", "nccl", ended, 95.0, 804.0, "", course, faulty),
        ProbeStatus("all_to_all", "nccl", "latency 24.1 µs, bus bandwidth 301 GB/s", 310.0, 590.0,
                    "busy: GPU2 runs a process", course),
        ProbeStatus("host_copy", "nccl", "slowest GPU 1 host to device: 26.1 GB/s", 2000.0, 1600.0),
        ProbeStatus("pairs", "nccl", "", None, 43_000.0, "slurm: a job is on the node"),
    ]  # fmt: skip


def _collectors(*, faulty: bool) -> list[CollectorStatus]:
    names = ("identity", "nvlink", "nvlink_errors", "pcie", "clocks", "gpm", "processes", "network", "ethtool", "rdma",
             "kernel_log", "services", "pci", "aer", "gpudirect")  # fmt: skip
    found = [CollectorStatus(f"nvml_{name}", True, 0.4, 1.0) for name in names]
    if faulty:
        found[2] = CollectorStatus("nvml_nvlink_errors", False, 312.0, 20.0, "0000:9b:00.0 did not answer within 2 s")
        found[3] = CollectorStatus("nvml_pcie", None, None, 60.0)
    return found
