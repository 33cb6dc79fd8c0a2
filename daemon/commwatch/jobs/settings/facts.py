"""Inputs of the settings audit: settings by process, and facts about the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from commwatch.jobs.settings.variables import Version

Origin: TypeAlias = Literal["environment", "conf_file", "home_file", "system_file"]
"""Where a value comes from: the environment, the file of NCCL_CONF_FILE, ``~/.nccl.conf``, ``/etc/nccl.conf``."""

Level: TypeAlias = Literal["NVL", "PIX", "PXB", "PHB", "SYS"]
"""Distance of two parts in NCCL's words; nvidia-smi's NODE is PHB."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str | None = field(repr=False)
    """None for a secret: it was set, more was not kept."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The settings in force for one process, or for a given environment or file."""

    settings: tuple[Setting, ...]
    """By name, each once: what NCCL finds, with the first origin that has the name."""
    shadowed: tuple[Setting, ...] = ()
    """Values of files that an earlier origin overrides with another one."""
    pid: int | None = None
    """None for what was given."""
    rank: str = ""
    """Rank in its job; empty if the launcher gives none."""
    world_size: str = ""
    """Ranks of its job; likewise."""
    local_rank: str = ""
    """Rank among those of this node; likewise."""
    job: str = ""
    """A digest of the launcher's variables, equal for the ranks of one job on this node; empty if they name none."""
    single_node: bool | None = None
    """Whether its job runs on this node only; None if the launcher does not show it."""
    nccl_version: Version | None = None
    malformed: tuple[tuple[Origin, int], ...] = ()
    """Lines of files, by number, that set something that nothing reads."""
    files_not_read: tuple[tuple[Origin, str], ...] = ()
    """Files that are there and were not read, and why."""
    missing_files: frozenset[str] = frozenset()
    """Variables that name a file which is not there."""
    interfaces: frozenset[str] | None = None
    """Of its network namespace, where that is not the node's; None: the node's."""
    network_namespace: str = ""
    """As the kernel names it; empty where not read."""
    dump_path: str = field(default="", repr=False)
    """What torch puts the rank behind for the name of a dump; empty where it is the default of its torch."""
    dumps: str = ""
    """Where its Flight Recorder writes, see ``flight_recorder.files.series_of``; empty where it is the default of its
    torch, or not known."""
    logs: tuple[str, ...] = ()
    """Identities of the files that it writes its messages into, see ``logs.files.identity_of``, as far as known."""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    device: str
    port: int
    active: bool | None
    """None where not read."""
    link_layer: str = ""
    """``InfiniBand`` or ``Ethernet``; other adapters do not speak NCCL's own transport."""
    rate_gbit: float | None = None
    """Gbit/s."""
    gids: frozenset[int] | None = None
    """Entries of the GID table that are filled; None where not read."""
    is_virtual: bool = False
    """Whether it belongs to a virtual function or a subfunction."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of a node that settings are judged by. None: not known; no remark is made that would need it."""

    gpus: int | None = None
    gpu_models: int | None = None
    """How many different ones."""
    peer_levels: frozenset[Level] = frozenset()
    """Between pairs of GPUs that the driver lets reach each other."""
    peers_refused: bool = False
    """Whether some pair may not reach each other."""
    peers_unknown: bool = True
    """Whether something between two GPUs was not read."""
    nvls: bool | None = None
    """Whether NVSwitches can add up."""
    node_nvlink: bool | None = None
    """Whether NVLink may lead to other nodes."""
    grace: bool | None = None
    """Whether GPUs hang on Grace processors by C2C."""
    nic_levels: frozenset[Level] = frozenset()
    """How far the nearest RDMA adapter of each GPU is."""
    rdma_ports: tuple[RdmaPort, ...] | None = None
    dual_port_adapter: bool | None = None
    """Whether one RDMA adapter has several ports."""
    peermem: bool | None = None
    """Whether the nvidia_peermem module is loaded."""
    dma_buf: bool | None = None
    """Whether the driver gives GPU memory to adapters by dma-buf: NVIDIA's open kernel module does."""
    interfaces: Mapping[str, bool | None] | None = None
    """Whether each network interface carries traffic."""
    cpu_vendor: str = ""
    """intel, amd, arm, other; empty where not known."""
    virtual: bool | None = None

    @property
    def usable_ports(self) -> tuple[RdmaPort, ...] | None:
        """The ports that NCCL's own RDMA transport can use; None where not read."""
        if self.rdma_ports is None:
            return None
        return tuple(one for one in self.rdma_ports if one.link_layer in ("InfiniBand", "Ethernet"))

    @property
    def active_ports(self) -> tuple[RdmaPort, ...]:
        """Those of them that are active."""
        return tuple(one for one in self.usable_ports or () if one.active)

    @property
    def gdr_possible(self) -> bool | None:
        """Whether adapters can reach GPU memory at all."""
        if self.peermem or self.dma_buf:
            return True
        return None if self.peermem is None or self.dma_buf is None else False
