"""A node with four GPUs and the processes of a job, which works and stops moving data."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from commwatch.jobs.stuck import GROUP, StuckJobs
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout, Value
from support.core import block, collected, collector
from support.facts import shipped

SLOTS = tuple(f"0000:{17 + index}:00.0" for index in range(4))
PIDS = (101, 102, 103, 104)
NAME = "a\n) \x1b[31m {{x}} (R 1"
"""As a process may call itself."""
STEP = 10.0
LIMIT = 700.0
SPINS, COMPUTES, IDLE, STOPS = (1.0, 140.0), (1.0, 630.0), (0.0, 110.0), (1.0, 315.0)
"""Use and watts; the last one is at 45 % of the limit."""
STUCK, SILENT, STOPPED, UNREAD, ODD = (
    f"commwatch_job_{name}"
    for name in ("stuck_seconds", "silent_seconds", "stopped_processes", "stuck_unread", "odd_rank")
)

COLLECTORS = {name: collector(name, interval=STEP) for name in StuckJobs.collectors}
USES = {
    family: Layout(
        (f"commwatch_{family}_transmit_utilization_ratio", (str(index), slot)) for index, slot in enumerate(SLOTS)
    )
    for family in ("nvlink", "pcie")
}
PORT = Layout([("commwatch_rdma_port_receive_bytes_total", ("mlx5_0", "1"))])
INTERFACE = Layout([("commwatch_ethernet_receive_bytes_total", ("eth0",))])
STATE = Layout([("commwatch_rdma_port_state", ("irdma0", "1"))])
GPUS = {
    slot: Layout(
        (f"commwatch_gpu_{name}", (str(index), slot))
        for name in ("utilization_ratio", "power_watts", "power_limit_watts")
    )
    for index, slot in enumerate(SLOTS)
}


class Node:
    """A node with four GPUs, their processes in a folder, and a clock that moves by readings.

    Args:
        store: of a daemon with that tracker; by default both are of their own.
    """

    def __init__(
        self, procfs: Path, model: str = "NVIDIA H100 80GB HBM3", links: float = 18, store: Store | None = None,
        tracker: StuckJobs | None = None,
    ) -> None:  # fmt: skip
        self.procfs = procfs
        self.store = store or Store()
        self.store.occupants = {slot: (pid,) for slot, pid in zip(SLOTS, PIDS, strict=True)}
        self.store.jobs = dict.fromkeys(PIDS, PIDS[0])
        self.tracker = tracker or StuckJobs(self.store, shipped(), {"H100": 0.45}, procfs)
        self.now = 10_000.0
        self.gpus: list[tuple[Value, Value]] = [COMPUTES] * 4
        self.layouts = dict(GPUS)
        self.held: list[Value] = []
        self.nvlink: Value = 0.3
        self.pcie: Value = 0.002
        self.has_gpm = True
        """Whether the GPUs count what PCIe moves; else it is sampled, as before Hopper."""
        self.port_bytes: Value = 0.0
        self.port_rate: float | None = 0.0
        self.disk_rate = 0.0
        self.cpu = dict.fromkeys(PIDS, 1.0)
        """Cores that each process uses."""
        self.state = dict.fromkeys(PIDS, "S")
        self.started = dict.fromkeys(PIDS, 900_000)
        self.user = dict.fromkeys(PIDS, 1001)
        self.wait: dict[int, tuple[str, str]] = {}
        """Of each process ``wchan`` and ``syscall``, where they can be read."""
        self._ran = dict.fromkeys(PIDS, 0.0)
        self._disk = 0.0
        (procfs / "2").mkdir()
        (procfs / "2/comm").write_text("kthreadd\n")
        for index, slot in enumerate(SLOTS):
            labels = (str(index), slot)
            info = ("commwatch_gpu_info", (*labels, "", "", model, "hopper"))
            self.store.put("nvml_identity", slot, block({info: 1, ("commwatch_nvlink_links", labels): links}, 0.0), 1e9)
        self.store.put("network", "eth0", Block(INTERFACE, [0], 0.0), 1e9)
        self.write()

    def write(self) -> None:
        """Bring the folder of the processes up to date."""
        (self.procfs / "uptime").write_text(f"{self.now} 0\n")
        (self.procfs / "diskstats").write_text(f"259 0 nvme0n1 0 0 0 0 0 0 {int(self._disk / 512)} 0 0 0 0\n")
        for pid in PIDS:
            folder = self.procfs / str(pid)
            if not self.state[pid]:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            folder.mkdir(exist_ok=True)
            ticks = int(self._ran[pid] * 100)
            zeros = " 0" * 29
            (folder / "stat").write_text(
                f"{pid} ({NAME}) {self.state[pid]} 1{' 0' * 9} {ticks} 0{' 0' * 6} {self.started[pid]}{zeros}"
            )
            (folder / "status").write_text(
                f"Name:\tx\nUid:\t{self.user[pid]}\t0\t0\t0\nvoluntary_ctxt_switches:\t{ticks}\nnon:\t0\n"
            )
            for name, text in zip(("wchan", "syscall"), self.wait.get(pid, ()), strict=False):
                (folder / name).write_text(text)

    def read(self, seconds: float) -> None:
        """Let time pass in which all stays as it is."""
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            if self.port_bytes is not None and self.port_rate is not None:
                self.port_bytes += self.port_rate * STEP
            self._disk += self.disk_rate * STEP
            for pid in PIDS:
                self._ran[pid] += self.cpu[pid] * STEP
            if self.nvlink != 0.3:  # else no file is read
                self.write()
            pcie = ("pcie_use", "nvml_gpm") if self.has_gpm else ("pcie_sampled_use", "nvml_pcie_sampled")
            for family, share, (group, name) in (
                ("nvlink", self.nvlink, ("nvlink_use", "nvml_nvlink")), ("pcie", self.pcie, pcie),
            ):  # fmt: skip
                self.store.put(group, "", Block(USES[family], [share] * 4, self.now), 60.0)
                self._run(name, {})
            self.store.put("rdma", "mlx5_0", Block(PORT, [self.port_bytes], self.now), 60.0)
            readings = zip(SLOTS, self.gpus, strict=True)
            self._run("nvml_gpu", {
                slot: Block(self.layouts[slot], [*values, LIMIT, *self.held], self.now) for slot, values in readings
            })  # fmt: skip

    def _run(self, name: str, blocks: Mapping[str, Block]) -> None:
        self.tracker.on_batch(Outcome(COLLECTORS[name], collected(blocks), time=self.now))

    def stops(self, seconds: float, *gpus: tuple[Value, Value]) -> None:
        """Nothing moves any more; the GPUs do this, or all spin."""
        self.nvlink, self.gpus = 0.0005, list(gpus or [SPINS] * 4)
        self.cpu = dict.fromkeys(PIDS, 0.0)
        self.read(seconds)

    def shown(self, metric: str) -> dict[tuple[str, ...], Value]:
        """What the tracker says: by labels after the address, of the metric."""
        return {
            (labels[0], *labels[2:]): one.get(metric, *labels)
            for one in self.store.group(GROUP).values()
            for name, labels in one.layout.series
            if name == metric
        }
