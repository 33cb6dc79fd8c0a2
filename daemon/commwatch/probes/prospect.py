"""A cycle as it would run on the GPUs that are here, and what is expected of it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.config.simulated import node_name
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.elements import ways_of
from commwatch.node.topology.model import Topology
from commwatch.node.topology.pair_matrix import PairEndpoint
from commwatch.node.topology.reach import GpuPaths
from commwatch.node.topology.ways import Cell, Parts
from commwatch.probes.plan import CyclePlan
from commwatch.probes.results.expected import Expected, expected_of_pair, expected_of_step
from commwatch.probes.results.history import GpuName


@dataclass(frozen=True, slots=True)
class Prospect:
    plan: CyclePlan
    gpus: tuple[ProbeGpu, ...] = ()
    """Those of the plan, by rank; empty without GPUs."""
    topology: Topology | None = None
    """None where it is not known."""
    paths: GpuPaths | None = None
    """Paths between the GPUs; None if they are not known, and without GPUs."""
    configured: float | None = None
    """``expected_bandwidth`` of the probe, bytes per second; it takes precedence."""

    @property
    def names(self) -> tuple[GpuName, ...]:
        """Label values of the GPUs, by rank."""
        return tuple(GpuName(str(gpu.index), gpu.pci_bus_id) for gpu in self.gpus)

    @property
    def gpu_model(self) -> str:
        """Of all GPUs of the plan; empty where they differ or it is not known."""
        return "" if self.paths is None else self.paths.common_name(range(self.plan.ranks))

    @property
    def expected(self) -> dict[int, Expected]:
        """The expected results of the plan's steps, by their place, where an expectation exists."""
        steps = enumerate(self.plan.steps)
        found = {place: expected_of_step(step, self.paths, self.configured) for place, step in steps}
        return {place: one for place, one in found.items() if one is not None}

    # --- of pairs ---

    @property
    def endpoints(self) -> tuple[PairEndpoint, ...]:
        """The ends of the pairs by rank: the GPUs, or the ranks where each has no GPU of its own."""
        if not self._has_own_gpus:
            return tuple(PairEndpoint(label=str(rank)) for rank in range(self.plan.ranks))
        return tuple(
            PairEndpoint(label=str(one.index), device=one.uuid, pci_address=one.pci_bus_id, name=one.name)
            for one in self.gpus
        )

    @property
    def _has_own_gpus(self) -> bool:
        return bool(self.gpus) and not self.plan.shares_gpus

    @property
    def path_classes(self) -> dict[Cell, str]:
        """Class of the way of each ordered pair, where it is known."""
        if self.paths is None or not self._has_own_gpus:
            return {}
        return {pair: reach.label for pair, reach in self.paths.pairs.items()}

    @property
    def expected_of_pairs(self) -> dict[Cell, Expected]:
        """The expected one-way bandwidth of each ordered pair, where an expectation exists."""
        pairs, size = {pair for step in self.plan.steps for pair in step.pairs}, self.plan.bandwidth_bytes
        found = {pair: expected_of_pair(pair, size, self.paths, self.configured) for pair in pairs}
        return {pair: one for pair, one in found.items() if one is not None}

    @property
    def parts(self) -> Parts:
        """The parts on the ways of the pairs; without a topology the pairs alone."""
        names = tuple(f"GPU{end.label}" for end in self.endpoints)
        if self.topology is None or self.paths is None or not self._has_own_gpus:
            return Parts({}, names)
        return Parts(ways_of(self.topology, self.paths), names)

    @property
    def simulated_node(self) -> str:
        """Name of the simulated node; empty for a real one."""
        return "" if self.plan.simulation is None else node_name(self.plan.simulation.preset)
