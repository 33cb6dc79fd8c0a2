"""A node's contribution to a probe: its backend, its rails, and the GPU of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple, TypeAlias

from commwatch.cluster.environment import BrokenRun
from commwatch.cluster.interfaces import leads_nowhere, nccl_choice, read_interfaces
from commwatch.cluster.messages import MOST_RAILS, Choice, Interface, RailOffer
from commwatch.jobs.settings.facts import RdmaPort
from commwatch.jobs.settings.node_network import read_node_network
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.model import Topology
from commwatch.node.topology.paths import nearest_nics, rank
from commwatch.probes.cycle.environment import why_no_torch
from commwatch.probes.rank_plan import Backend
from commwatch.sources.rdma.places import is_excluded

BACKENDS: tuple[Backend, ...] = ("nccl", "gloo", "tcp", "simulated")
_INFINIBAND_LAYERS = ("InfiniBand", "Ethernet")
Adapters: TypeAlias = Mapping[str, RdmaPort]


class Rail(NamedTuple):
    offer: RailOffer
    interface: str
    adapter: str = ""
    """RDMA device; empty: sockets."""
    gpu: str = ""
    """UUID; empty without."""


class Network(NamedTuple):
    interfaces: tuple[Interface, ...]
    choice: Choice
    """The interface where ranks meet, which is also measured if no rail is named."""
    adapters: Adapters
    """RDMA devices with an active port that has an address: one for Ethernet packets alone has none."""


def read_network(
    sysfs: Path, procfs: Path, variables: Mapping[str, str], interface: str, exclude: Sequence[str] = ()
) -> Network:
    """Read it. Blocks, as the firmware of an adapter may.

    Args:
        interface: to use, whatever the environment says; empty: none is given.
        exclude: RDMA devices that are no rails, as of ``RdmaSection``.
    """
    interfaces = read_interfaces(procfs)
    given = {"NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
    ports = read_node_network(sysfs, procfs).rdma_ports or ()
    adapters = {
        one.device: one
        for one in ports
        if one.active and not one.is_virtual and one.link_layer in _INFINIBAND_LAYERS and one.gids != frozenset()
        and not is_excluded(f"{sysfs}/class/infiniband/{one.device}", exclude)
    }  # fmt: skip
    return Network(interfaces, nccl_choice(interfaces, {**variables, **given}), adapters)


def chosen_backend(asked: str, *, simulated: bool, gpus: int, python: str = "") -> Backend:
    """The backend of this node.

    Args:
        asked: by the operator; ``auto`` is nccl where there are GPUs and torch, else tcp.
        simulated: the node does not exist.

    Raises:
        BrokenRun: there is no such backend, or not here.
    """
    for one in BACKENDS:
        if one == asked:
            if simulated != (one == "simulated"):
                raise BrokenRun(f"cluster: backend {one}: a simulated node has backend simulated, and no other one has")
            return one
    if asked != "auto":
        raise BrokenRun(f"cluster: unknown backend {asked!r}; known: auto, {', '.join(BACKENDS)}")
    if simulated:
        return "simulated"
    return "nccl" if gpus and not why_no_torch(python) else "tcp"


def gpus_out_of_reach(asked: str, backend: Backend, *, seen: int, on_bus: int) -> str:
    """Why a node that has GPUs is not measured without them; empty if it is not so.

    A step of Slurm has no GPU that its job did not ask for, also if the job has the node for itself.

    Args:
        asked: by the operator, as of ``chosen_backend``.
        seen: GPUs that the driver shows to this process.
        on_bus: those that the PCI bus of the node has.
    """
    if asked != "auto" or backend != "tcp" or seen or not on_bus:
        return ""
    return (
        f"no_gpu_backend: the driver shows none of the {on_bus} GPUs; a Slurm job asks for them "
        f"(--gpus-per-node={on_bus}), --backend tcp measures without"
    )


def rails_of(
    network: Network, backend: Backend, names: Sequence[str], gpus: Sequence[ProbeGpu], topology: Topology
) -> tuple[Rail, ...]:
    """The rails of this node, in the order in which they meet those of others.

    Args:
        names: interfaces, or RDMA devices for NCCL; empty: with NCCL one RDMA device nearest to each GPU, which leaves
            out those of storage and management and second ports, else the interface that NCCL would take.
        topology: by which the GPU of a rail is the one nearest to its adapter; without it each RDMA device is a rail.

    Raises:
        BrokenRun: a name is none of this node, or nothing here leads to other nodes.
    """
    if backend == "simulated":
        if not gpus:
            raise BrokenRun("cluster: the simulated node has no GPU that answers")
        address = _usable(network.choice).address
        return tuple(
            Rail(RailOffer(name=f"gpu{one.index}", address=address), network.choice.interface, gpu=one.uuid)
            for one in gpus[:MOST_RAILS]
        )
    on_gpus = backend == "nccl"
    adapters: Adapters = network.adapters if on_gpus else {}
    near = {one.uuid: _adapters_near(topology, one.pci_bus_id) for one in gpus}
    of_gpus = _one_each(adapters, [beside for _, beside in near.values()]) or list(adapters)[: len(gpus)]
    wanted = tuple(names) or tuple(of_gpus) or (_usable(network.choice).interface,)
    found = tuple(_rail(network, adapters, name) for name in wanted[:MOST_RAILS])
    if not on_gpus:
        return found
    if len(found) > len(gpus):
        raise BrokenRun(f"cluster: {len(found)} rails, {len(gpus)} GPUs; each rail needs one: --rails NAME,...")
    return tuple(one._replace(gpu=gpu.uuid) for one, gpu in zip(found, _nearest(found, gpus, near), strict=True))


def _rail(network: Network, adapters: Adapters, name: str) -> Rail:
    if name in adapters:
        meeting = _usable(network.choice)
        rate = (adapters[name].rate_gbit or 0.0) * 1e9 / 8
        offer = RailOffer(name=name, address=meeting.address, rate=rate, link_layer=adapters[name].link_layer)
        return Rail(offer, meeting.interface, name)
    for one in network.interfaces:
        if one.name == name:
            return Rail(RailOffer(name=name, address=one.address), name)
    known = ", ".join((*adapters, *(one.name for one in network.interfaces)))
    raise BrokenRun(f"cluster: no rail {name[:40]!r} on this node; there are: {known or 'none'}")


def _usable(choice: Choice) -> Choice:
    """The choice if it leads to other nodes or was named by the user."""
    if choice.address and (choice.why or not leads_nowhere(choice)):
        return choice
    raise BrokenRun("cluster: no interface of this node leads to other nodes: --interface NAME")


def _one_each(adapters: Adapters, near: Iterable[AbstractSet[str]]) -> list[str]:
    """One adapter for each GPU that has one beside it, in their order: of a card with two ports not both.

    Args:
        near: the adapters nearest to each GPU.
    """
    taken: set[str] = set()
    for beside in sorted(near, key=len):
        taken.update([one for one in adapters if one in beside and one not in taken][:1])
    return [one for one in adapters if one in taken]


def _nearest(
    rails: Sequence[Rail], gpus: Sequence[ProbeGpu], near: Mapping[str, tuple[int, AbstractSet[str]]]
) -> Iterator[ProbeGpu]:  # fmt: skip
    """A GPU of its own for each rail, the nearest one if the topology shows it.

    Args:
        near: the adapters nearest to each GPU and how far they are, by its UUID.
    """
    free = list(gpus)
    for rail in rails:
        beside = [one for one in free if rail.adapter in near[one.uuid][1]]
        best = min(beside or free[:1], key=lambda one: (near[one.uuid][0], len(near[one.uuid][1])))
        free.remove(best)
        yield best


def _adapters_near(topology: Topology, address: str) -> tuple[int, frozenset[str]]:
    """The place of their class, the nearest first, and their names."""
    for gpu in topology.gpus:
        if gpu.address == address and (found := nearest_nics(topology, gpu)) is not None:
            return rank(found.kind), frozenset(name for nic in found.nics for name in nic.all_rdma_devices)
    return rank("?"), frozenset()
