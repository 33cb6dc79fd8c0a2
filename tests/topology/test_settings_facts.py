"""What of a topology NCCL settings are held against."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commwatch.jobs.settings.facts import NodeFacts, RdmaPort
from commwatch.jobs.settings.node_network import NodeNetwork
from commwatch.jobs.settings.topology_facts import node_facts
from commwatch.node.topology.model import Topology
from support.passes import in_one_pass
from support.topologies import simulated_topology
from topology.harness import driver, gpu, links, topology
from topology.trees import hgx, rtx3090x4, two_sockets

HGX = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
CARDS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
UNKNOWN = NodeNetwork(None, None, None, None, None)


def facts(shown: Topology, network: NodeNetwork = UNKNOWN) -> NodeFacts:
    return node_facts(shown, network)


def changed(shown: Topology, **fields: object) -> Topology:
    return replace(shown, **fields)  # type: ignore[arg-type]


def test_gpus_on_nvswitches_reach_each_other_by_nvlink(tmp_path: Path) -> None:
    """Which adds up from Hopper on; the adapters are near."""
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX)]
    shown = topology(hgx(tmp_path).root, driver(*(replace(one, architecture="Hopper", name="H100") for one in gpus)))

    found = facts(shown)

    assert (found.gpus, found.gpu_models, found.peer_levels, found.peers_unknown) == (4, 1, frozenset({"NVL"}), False)
    assert (found.nvls, found.grace, found.node_nvlink) == (True, False, False)
    assert found.nic_levels == {"PIX"}
    older = changed(shown, gpus=tuple(replace(one, architecture="Ampere") for one in shown.gpus))
    assert facts(older).nvls is False


def test_pairs_that_the_driver_refuses_have_no_way(tmp_path: Path) -> None:
    """Consumer cards: no P2P, so none can be turned off."""
    rtx3090x4(tmp_path)
    shown = topology(tmp_path, driver(*(gpu(place, address) for place, address in enumerate(CARDS))))

    assert facts(shown).peer_levels == {"PIX", "PHB"}
    refused = frozenset(frozenset({one, other}) for one in CARDS for other in CARDS if one != other)
    found = facts(changed(shown, peers_refused=refused))
    assert (found.peer_levels, found.peers_refused, found.peers_unknown) == (frozenset(), True, False)


def test_without_a_driver_the_ways_are_not_known(tmp_path: Path) -> None:
    """It may be NVLink, and it may be refused: nothing is taken for known."""
    two_sockets(tmp_path)

    found = facts(topology(tmp_path))

    assert (found.peer_levels, found.peers_unknown) == (frozenset(), True)
    assert (found.nvls, found.grace, found.node_nvlink, found.gpu_models) == (None, None, None, None)


def test_superchips_and_racks_are_known_by_name(tmp_path: Path) -> None:
    """The model's name is all that the driver says of it."""
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX)]
    shown = topology(hgx(tmp_path).root, driver(*(replace(one, name="NVIDIA GB200") for one in gpus)))

    assert (facts(shown).grace, facts(shown).node_nvlink) == (True, True)


def test_what_was_read_of_the_network_is_passed_on(tmp_path: Path) -> None:
    """And two ports of one device are a dual-port adapter."""
    port = RdmaPort("mlx5_0", 1, True, "InfiniBand", 400.0)
    network = NodeNetwork({"eno1": True}, (port, replace(port, port=2)), True, False, True)

    found = facts(topology(tmp_path), network)

    assert (found.interfaces, found.rdma_ports, found.dual_port_adapter) == (
        network.interfaces,
        network.rdma_ports,
        True,
    )
    assert (found.peermem, found.dma_buf, found.gdr_possible, found.virtual) == (True, False, True, True)
    assert facts(topology(tmp_path)).dual_port_adapter is None


@in_one_pass(
    "preset, levels, nvls",
    [("h100x8", {"NVL"}, True), ("a100x4", {"NVL"}, False), ("rtx3090x4", None, False), ("a10x2", None, False)],
)
def test_the_simulated_nodes_are_what_they_are(preset: str, levels: set[str] | None, nvls: bool) -> None:
    """Read as real ones are."""
    shown, problems = simulated_topology(preset)

    found = facts(shown)

    assert problems == ()
    assert found.nvls is nvls
    assert found.peer_levels == levels if levels is not None else "NVL" not in found.peer_levels
