"""RDMA ports that NCCL cannot address, and adapters that cannot reach the memory of GPUs."""

from __future__ import annotations

from support.facts import Numbers, codes_by, facts_of, seen_by
from support.machines import merged
from support.passes import in_one_pass

PORT, OTHER = ("mlx5_0", "1"), ("mlx5_1", "1")
CODE, NO_WAY = "rdma_port_without_address", "gpudirect_unavailable"


def port(
    kinds: tuple[str, ...] | None, *, layer: str = "Ethernet", gbit: float = 400, state: float = 4, master: str = "",
    key: tuple[str, str] = PORT,
) -> Numbers:  # fmt: skip
    """A port with GIDs of these kinds; None: its table was not read."""
    interface = f"eth{key[0][-1]}"
    found: dict[str, dict[tuple[str, ...], float]] = {
        "commwatch_rdma_port_info": {(*key, layer, "", "", "", "MT4129", "0000:18:00.0", interface): 1.0},
        "commwatch_rdma_port_state": {key: state},
        "commwatch_rdma_port_speed_bytes_per_second": {key: gbit / 8 * 1e9},
        "commwatch_ethernet_info": {(interface, "", "mlx5_core", master): 1.0},
    }
    if kinds is not None:
        found["commwatch_rdma_port_gids"] = {key: len(kinds)}
        found["commwatch_rdma_port_gid_index"] = {(*key, kind): place for place, kind in enumerate(kinds)}
    return found


LOCAL = ("roce_v1", "roce_v2_link_local")


@in_one_pass(
    "ports, evidence",
    [
        ((port(()),), "none"),
        ((port((), layer="InfiniBand"),), "none"),
        ((port(LOCAL),), "roce v1, roce v2 link local"),
        ((port(LOCAL), port(("roce_v2_ipv4",), gbit=100, key=OTHER)), "roce v1, roce v2 link local"),
        ((port((*LOCAL, "roce_v2_ipv4")),), None),
        ((port((*LOCAL, "roce_v2_ipv6")),), None),
        ((port(("infiniband",), layer="InfiniBand"),), None),
        ((port(LOCAL, master="bond0"),), None),
        ((port(LOCAL, gbit=100), port(("roce_v2_ipv4",), key=OTHER)), None),  # NCCL takes the faster one
        ((merged(port(()), {"commwatch_rdma_port_gids": {PORT: 1}}),), None),  # of iWARP, whose GID has no kind
        ((port((), state=1),), None),
        ((port(None),), None),
    ],
)
def test_an_active_port_that_nccl_would_take_needs_an_address(ports: tuple[Numbers, ...], evidence: str | None) -> None:
    """Any GID; of RoCE one with an IP address. What was not read says nothing."""
    found = seen_by(CODE, facts_of(merged(*ports)))

    assert [(one.component.identity, one.evidence[0].value) for one in found] == (
        [] if evidence is None else [("rdma_port/mlx5_0/1", evidence)]
    )


@in_one_pass(
    "ways, state, found",
    [
        ({"peermem": 0.0, "dma_buf": 0.0}, 4, [(NO_WAY, "node")]),
        ({"peermem": 1.0, "dma_buf": 0.0}, 4, []),
        ({"peermem": 0.0}, 4, []),
        ({"peermem": 0.0, "dma_buf": 0.0}, 1, []),
    ],
)
def test_adapters_need_one_way_to_gpu_memory(
    ways: dict[str, float], state: float, found: list[tuple[str, str]]
) -> None:
    """Where both were looked for, a port is active and a GPU is known."""
    modules: Numbers = {"commwatch_gpudirect_rdma_available": {(way,): flag for way, flag in ways.items()}}
    gpu: Numbers = {"commwatch_gpu_info": {("0", "0000:17:00.0", "", "", "", ""): 1.0}}
    numbers = merged(port(("roce_v2_ipv4",), state=state), modules)

    assert codes_by(NO_WAY, facts_of(merged(numbers, gpu))) == found
    assert codes_by(NO_WAY, facts_of(numbers)) == []
