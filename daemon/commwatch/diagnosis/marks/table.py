"""The reference marks that users know: figures, what they are about, and what a value is worth beside them; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from commwatch.diagnosis.check import CheckVerdict
from commwatch.node.gpu_models import is_model
from commwatch.units import format_percent, format_rate, format_seconds

MarkUnit: TypeAlias = Literal["bytes_per_second", "seconds", "ratio"]

HEALTHY_SHARE = 0.85
"""Of what is expected: healthy hardware gives as much and more. Itself a mark that users know."""


class Unmet(NamedTuple):
    """Healthy hardware that is known to stay below a mark."""

    gpu: str
    """Start of the GPU's name, without the vendor."""
    words: str
    """Its measured results, and their source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A figure that users know."""

    name: str
    quantity: str
    direction: str
    size: str
    """Of the messages."""
    path: str
    """The class of paths that it is about; to others it does not apply."""
    figure: float
    unit: MarkUnit
    source: str
    at_most: bool = False
    """Whether less is better."""
    unmet: tuple[Unmet, ...] = ()

    @property
    def required(self) -> str:
        """``at least 48 GB/s``."""
        return f"{'at most' if self.at_most else 'at least'} {self.words(self.figure)}"

    @property
    def origin(self) -> str:
        """Where it comes from, and what it is about."""
        return f"{self.source}; {self.quantity}, {self.direction}, {self.size}; {self.path}"

    def words(self, value: float) -> str:
        """A value of this quantity with its unit."""
        if self.unit == "bytes_per_second":
            return format_rate(value)
        return format_seconds(value) if self.unit == "seconds" else format_percent(value)


def judge_rate(mark: Mark, rate: float, expected: float | None, gpu: str = "") -> tuple[CheckVerdict, str]:
    """The verdict on a measured rate against a mark in bytes per second, and the reason.

    A mark does not apply to hardware that cannot meet it. So a value below it fails only if this hardware should come
    within 15 % of the mark, and is more than 15 % below its own expectation.

    Args:
        mark: to be reached or passed.
        rate: bytes per second.
        expected: what this hardware should give for the same quantity and size, from configuration, published results
            or a model; None where nothing can be said.
        gpu: name of the GPUs as the driver gives it.
    """
    if rate >= mark.figure:
        return "passed", ""
    known = next((one for one in mark.unmet if is_model(gpu, one.gpu)), None)
    if known is not None:
        return "published mark", f"healthy hardware of this kind stays below it: {known.words}"
    if expected is None:
        return "published mark", "what this hardware should give is not known"
    share = f"{format_percent(rate / expected)} of the {format_rate(expected)} that this hardware should give"
    if expected < HEALTHY_SHARE * mark.figure:
        return "published mark", f"this hardware cannot meet it at this size; {share}"
    if rate >= HEALTHY_SHARE * expected:
        return "published mark", f"{share} at this size, as healthy hardware does"
    return "failed", share


# --- the marks, one by one ---

UTILIZATION = Mark(
    name="utilization",
    quantity="bandwidth over what is expected",
    direction="as the probe measures it",
    size="that of the probe",
    path="any of which an expected bandwidth is known",
    figure=HEALTHY_SHARE,
    unit="ratio",
    source="published figure for healthy systems",
)

PCIE_GEN4_X16 = Mark(
    name="pcie_gen4_x16",
    quantity="PCIe bandwidth",
    direction="both ways together",
    size="large messages",
    path="PCIe gen 4 x16 without a halt in the host's memory: a GPU and its host, or two GPUs under one PCIe switch "
    "that may read each other's memory",
    figure=48e9,
    unit="bytes_per_second",
    source="published figure; twice the 24 GB/s of one direction with which NCCL plans (src/graph/topo.cc)",
)

NVLINK = Mark(
    name="nvlink",
    quantity="all_reduce bus bandwidth over NVLink",
    direction="one direction",
    size="large messages",
    path="NVLink 3.0 or 4.0 (A100, H100 and their kin) that joins all GPUs of the node",
    figure=300e9,
    unit="bytes_per_second",
    source="published figure",
    unmet=(Unmet("A100", "8 A100 SXM give 230 to 235 GB/s (SuperBench, tests/data/nccl_allreduce.log)"),),
)
"""A100 has 300 GB/s in nominal rate, which no collective reaches."""

INFINIBAND_HDR = Mark(
    name="infiniband_hdr",
    quantity="RDMA latency",
    direction="one way",
    size="small messages",
    path="InfiniBand HDR: a port of 200 Gbit/s over 4 lanes",
    figure=1.2e-6,
    unit="seconds",
    source="published figure",
    at_most=True,
)

COLLECTIVE_LATENCY = Mark(
    name="collective_latency",
    quantity="latency of a collective",
    direction="as the probe measures it",
    size="small messages",
    path="the GPUs of one node, two or more, or two nodes, whatever joins them",
    figure=15e-3,
    unit="seconds",
    source="published figure",
    at_most=True,
)

ALL_REDUCE_7B = Mark(
    name="all_reduce_7b",
    quantity="all_reduce bus bandwidth",
    direction="one direction",
    size="large messages",
    path="the GPUs of one node, two or more, whatever joins them",
    figure=80e9,
    unit="bytes_per_second",
    source="published figure for a 7B model",
)

ALL_REDUCE_235B = Mark(
    name="all_reduce_235b",
    quantity="all_reduce bus bandwidth",
    direction="one direction",
    size="large messages",
    path=ALL_REDUCE_7B.path,
    figure=120e9,
    unit="bytes_per_second",
    source="published figure for a 235B model",
    unmet=(Unmet("H100 PCIe", "two joined by a bridge gave 115 GB/s (field report)"),),
)
