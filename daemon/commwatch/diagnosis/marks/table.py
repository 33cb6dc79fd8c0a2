"""The reference marks that users know, one by one."""

from __future__ import annotations

from commwatch.diagnosis.marks.mark import HEALTHY_SHARE, Mark, Unmet

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
"""What A100 has is 300 GB/s in nominal rate, which no collective reaches."""

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
