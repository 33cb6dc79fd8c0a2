"""The GPUs of this node for a probe started by hand: what nvidia-smi, or a simulated node, says of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commwatch.errors import CommwatchError
from commwatch.probes.gate import GpuFacts
from commwatch.probes.plan import SimulatedNodePlan

_MIB = 2**20
_DEADLINE_SECONDS = 30.0
"""Without persistence mode the driver takes 1 to 3 s for each GPU."""

_GPU_QUERY = ("uuid", "pci.bus_id", "name", "memory.used", "compute_mode", "mig.mode.current", "utilization.gpu")
_APP_QUERY = ("gpu_uuid", "pid")


@dataclass(frozen=True, slots=True)
class ProbeGpu:
    """One GPU that a probe may use."""

    uuid: str
    name: str
    facts: GpuFacts
    nvlinks: int | None = None
    """NVLinks that it has; None where not known."""


def driver_loaded(procfs: Path) -> bool:
    """Whether an NVIDIA driver is loaded."""
    return (procfs / "driver/nvidia/version").exists()


def read_gpus() -> tuple[ProbeGpu, ...]:
    """The GPUs and what runs on them, from two calls of nvidia-smi; blocks.

    Raises:
        CommwatchError: nvidia-smi is not there, fails, or does not answer.
    """
    return parse_gpus(_ask("gpu", _GPU_QUERY), _ask("compute-apps", _APP_QUERY))


def parse_gpus(gpus: str, apps: str) -> tuple[ProbeGpu, ...]:
    """From ``nvidia-smi --query-gpu`` and ``--query-compute-apps`` (csv, noheader, nounits); MiB for memory."""
    uuids = [row[0] for row in _rows(apps, len(_APP_QUERY))]
    return tuple(_gpu(row, uuids.count(row[0])) for row in _rows(gpus, len(_GPU_QUERY)))


def _gpu(row: Sequence[str], processes: int) -> ProbeGpu:
    uuid, bus_id, name, memory, mode, mig, utilization = row
    facts = GpuFacts(
        device=_pci_address(bus_id),
        busy=int(utilization) > 0 or processes > 0 if utilization.isdigit() else None,
        compute_processes=processes,
        memory_used_bytes=int(memory) * _MIB if memory.isdigit() else None,
        compute_mode=mode.lower() if not mode.startswith("[") else None,
        # "[N/A]" is the answer of GPUs that cannot be split.
        mig=mig == "Enabled",
    )
    return ProbeGpu(uuid, name, facts)


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def _pci_address(bus_id: str) -> str:
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _ask(what: str, columns: Sequence[str]) -> str:
    command = ("nvidia-smi", f"--query-{what}={','.join(columns)}", "--format=csv,noheader,nounits")
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise CommwatchError(f"nvidia-smi: {error.strerror}; it comes with the NVIDIA driver") from error
    try:
        output, _ = process.communicate(timeout=_DEADLINE_SECONDS)
    except subprocess.TimeoutExpired as error:
        # Not killed: it may sit in the driver, and killing it there has frozen GPUs.
        raise CommwatchError(f"nvidia-smi gave no answer in {_DEADLINE_SECONDS:.0f} s; look at dmesg") from error
    if process.returncode != 0:
        raise CommwatchError(f"nvidia-smi failed: {output.strip().splitlines()[-1] if output.strip() else 'no reason'}")
    return output


def simulated_gpus(plan: SimulatedNodePlan) -> tuple[ProbeGpu, ...]:
    """The GPUs that a simulated node has now; its jobs use no memory, and none of its GPUs is split or restricted."""
    from commwatch.simulation.node import SimulatedNode

    node = SimulatedNode(plan.preset, Path(plan.faults_file) if plan.faults_file else None, plan.started_at)
    hardware, now = node.now()
    epoch, model = hardware.epoch(now), node.preset.model
    found = []
    for place in epoch.enumerated:
        gpu, busy = node.preset.gpus[place], epoch.gpus[place].busy
        facts = GpuFacts(gpu.pci_address, busy, int(busy), memory_used_bytes=0, compute_mode="default", mig=False)
        has_links = model.nvlink is not None and model.nvlink.remote != "none"
        found.append(ProbeGpu(gpu.uuid, model.name, facts, model.nvlink.links if has_links and model.nvlink else None))
    return tuple(found)
