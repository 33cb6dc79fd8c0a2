"""Which pairs of a topology the rules of the findings call slow, from a matrix of any age and machine; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch.findings.rules.pairs import PAIRS
from commwatch.node.topology.measured import Measured, laid_over
from commwatch.node.topology.model import Topology
from commwatch.node.topology.pair_matrix import PairMatrix, Suspect
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot


def measured_on(topology: Topology, matrix: PairMatrix, now: float, thresholds: Thresholds) -> Measured | str:
    """The matrix by the GPUs of a machine with the pairs that are slow, or why it does not belong to them.

    Args:
        matrix: of this machine, or of another one.
        now: seconds since 1970.
    """
    measured = laid_over(topology, matrix, now)
    if isinstance(measured, str):
        return measured
    readings = dict(_readings(topology, measured))
    snapshot = Snapshot([Block(Layout(readings), tuple(readings.values()), now)])
    return replace(measured, slow=_slow(measured, Facts(Node(snapshot), CounterHistory({}), now), thresholds))


def _slow(measured: Measured, facts: Facts, thresholds: Thresholds) -> frozenset[frozenset[str]]:
    """Pairs that are slow by themselves, and those that a suspected part explains."""
    found = {match.component.key for rule in PAIRS.rules for match in rule.evaluate(facts, thresholds)}
    ends = [gpu.address for gpu in measured.gpus]
    of_suspects = [
        (ends[source], ends[target])
        for suspect in measured.matrix.suspects
        if suspect.quantity == "bandwidth" and f"{suspect.kind}/{_element(measured, suspect)}" in found
        for source, target in suspect.cells
    ]
    by_themselves = [(one, two) for one in ends for two in ends if f"{one}-{two}" in found]
    return frozenset(map(frozenset, (*by_themselves, *of_suspects)))


def _readings(topology: Topology, measured: Measured) -> Iterator[tuple[Series, float]]:
    """The series that the daemon of this machine would expose for these GPUs, for the parts between them, and for the
    matrix.

    Indexes are places in the matrix: a GPU that the driver has lost has none of its own.
    """
    matrix = measured.matrix
    for device in topology.devices.values():
        numa = "" if device.numa_node is None else str(device.numa_node)
        yield ("commwatch_pcie_device_info", (device.address, device.role, device.parent, numa, "", "")), 1.0
    for place, gpu in enumerate(measured.gpus):
        labels = (str(place), gpu.address)
        yield ("commwatch_gpu_info", (*labels, gpu.uuid, "", gpu.name, gpu.architecture)), 1.0
        for link in gpu.nvlinks or ():
            if link.active:
                yield ("commwatch_nvlink_link_expected", (*labels, str(link.number))), 1.0
            if link.remote_type:
                end = (link.version, link.remote_type, link.remote_address, "")
                yield ("commwatch_nvlink_info", (*labels, str(link.number), *end)), 1.0
    for cell in matrix.cells:
        ends = (str(cell.source), str(cell.destination), matrix.backend)
        if cell.bandwidth is not None:
            yield ("commwatch_pair_bandwidth_bytes_per_second", ends), cell.bandwidth
        if cell.expected_bandwidth is not None:
            yield ("commwatch_pair_expected_bandwidth_bytes_per_second", ends), cell.expected_bandwidth
    for suspect in matrix.suspects:
        yield ("commwatch_suspect_ratio", (suspect.kind, _element(measured, suspect))), suspect.confidence


def _element(measured: Measured, suspect: Suspect) -> str:
    """A suspect with its GPUs by their places."""
    names = {f"GPU{end.label}": f"GPU{place}" for place, end in enumerate(measured.matrix.endpoints)}
    return "-".join(names.get(name, name) for name in suspect.element.split("-"))
