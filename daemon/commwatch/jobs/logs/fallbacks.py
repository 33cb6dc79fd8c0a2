"""The kinds of fallback: a job left a faster transport; each with its sentence and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from commwatch.jobs.logs.categories import About

NO_P2P: Final = About("config",
    "NCCL_P2P_DISABLE forbids transfers between the GPUs of a node: they go through memory of the host.",
    "Remove it, unless these transfers are broken on the node (commwatch topology, nvidia-smi topo -p2p r).",
)  # fmt: skip
_TCP: Final = "Ranks on several nodes talk over TCP"
REASONS: Final[dict[str, About]] = {
    "disabled": About("config", f"{_TCP}: NCCL_IB_DISABLE forbids RDMA.",
        "Remove NCCL_IB_DISABLE, unless the nodes have no working RDMA adapter (commwatch cluster probe tries them)."),
    "chosen": About("config", f"{_TCP}: NCCL_NET chooses sockets.",
        "Remove NCCL_NET, unless the nodes have no working RDMA adapter."),
    "no_library": About("config", f"{_TCP}: libibverbs is not in the image, so NCCL cannot use RDMA.",
        "If the nodes have RDMA adapters (ls /sys/class/infiniband on the host): install libibverbs and the providers "
        "(rdma-core) in the image, and give the container /dev/infiniband. If they have none, the network is what "
        "limits the job: compare it with commwatch estimate."),
    "not_opened": About("config", f"{_TCP}: NCCL saw an RDMA adapter and could not open it.",
        "Give the container the device files and the right to lock memory: --device /dev/infiniband --ulimit "
        "memlock=-1 (in Kubernetes the RDMA device plugin); then NCCL writes Using network IB."),
}  # fmt: skip
"""By mark, the most certain first."""
HCA: Final = About("config", f"{_TCP}: the list NCCL_IB_HCA names no adapter that this process sees.",
    "Compare the list with ls /sys/class/infiniband inside the container; correct or remove NCCL_IB_HCA, and give the "
    "container /dev/infiniband.")  # fmt: skip
NO_DEVICE: Final = About("config",
    f"{_TCP} over an InfiniBand adapter's interface: the adapter itself is not in the container.",
    "Give the container /dev/infiniband (--device /dev/infiniband, in Kubernetes the RDMA device plugin).")  # fmt: skip
WANTED: Final = About("config",
    f"{_TCP}: the settings ask for RDMA, and NCCL found no adapter.",
    "Look at ls /sys/class/infiniband on the host: if adapters are there, give the container /dev/infiniband and the "
    "libraries of rdma-core; if none is, the network is what limits the job: compare it with commwatch estimate.",
)  # fmt: skip
NO_GDR: Final = About("host",
    "Transfers between nodes go through memory of the host: NCCL says that GPUDirect RDMA is off.",
    "On data centre GPUs load nvidia-peermem (lsmod shows it), or use a kernel and driver with DMA-BUF; NCCL_DEBUG=INFO"
    " then writes GDRDMA behind its channels.",
)  # fmt: skip
NO_NVLS: Final = About("nvlink",
    "The NVSwitches refused multicast (NVLink SHARP); NCCL goes on without it, slower within the node.",
    "Look at the fabric manager and its log (systemctl status nvidia-fabricmanager, on B200 and newer NVLSM too), and "
    "whether other jobs or groups of the job hold all multicast groups of the NVSwitches.",
)  # fmt: skip
PROVIDER: Final = About("config", f"{_TCP}: libfabric chose the provider tcp and not efa.",
    "Look whether the instance has EFA (fi_info -p efa inside the container), give the container /dev/infiniband, and "
    "check the security group; FI_PROVIDER=efa makes the failure visible.")  # fmt: skip

UNSEEN: Final = About("config", f"{_TCP}: NCCL found no RDMA adapter.", WANTED.next_step)
UNEXPLAINED: Final = About("config", f"{_TCP}; the log does not say why.",
    "Run the job with NCCL_DEBUG=INFO and read what NCCL writes of NET/IB and of settings; compare ls "
    "/sys/class/infiniband on the node and inside the container.")  # fmt: skip

FallbackKind: TypeAlias = Literal[
    "ib_disabled",
    "net_socket",
    "libibverbs_missing",
    "adapter_not_opened",
    "hca_list",
    "adapter_missing",
    "unexplained",
    "provider_tcp",
    "gpudirect_off",
    "nvls_lost",
    "p2p_disabled",
]
"""By what a job left a faster transport: a label of the daemon's counter."""
Needs: TypeAlias = Literal["", "rdma", "gpudirect", "nvlink"]


class Fallback(NamedTuple):
    abouts: tuple[About, ...]
    """The sentences about it, the usual words first."""
    step: str
    """The next step if the node is known to have the transport that the job left."""
    needs: Needs = "rdma"
    """The requirement without which the job is well: an active RDMA port, that and GPUs that adapters can reach, or
    NVLinks. Empty if the line itself proves that the node has it."""


FALLBACKS: Final[Mapping[FallbackKind, Fallback]] = {
    "ib_disabled": Fallback((REASONS["disabled"],), "Remove NCCL_IB_DISABLE from the job."),
    "net_socket": Fallback((REASONS["chosen"],), "Remove NCCL_NET from the job."),
    "libibverbs_missing": Fallback((REASONS["no_library"],),
        "Install libibverbs and the providers (rdma-core) in the image, and give the container /dev/infiniband."),
    "adapter_not_opened": Fallback((REASONS["not_opened"],), REASONS["not_opened"].next_step, needs=""),
    "hca_list": Fallback((HCA,),
        "Compare NCCL_IB_HCA with ls /sys/class/infiniband on this node and inside the container; correct or remove "
        "it, and give the container /dev/infiniband."),
    "adapter_missing": Fallback((UNSEEN, WANTED, NO_DEVICE),
        "Give the container /dev/infiniband (--device /dev/infiniband, in Kubernetes the RDMA device plugin) and the "
        "libraries of rdma-core."),
    "unexplained": Fallback((UNEXPLAINED,), UNEXPLAINED.next_step),
    "provider_tcp": Fallback((PROVIDER,), PROVIDER.next_step),
    "gpudirect_off": Fallback((NO_GDR,),
        "Load nvidia-peermem (lsmod shows it), or use a kernel and driver with DMA-BUF, and see that the container "
        "has them.", needs="gpudirect"),
    "nvls_lost": Fallback((NO_NVLS,), NO_NVLS.next_step, needs=""),
    "p2p_disabled": Fallback((NO_P2P,),
        "Remove NCCL_P2P_DISABLE from the job, unless transfers between the GPUs are broken here (commwatch topology, "
        "nvidia-smi topo -p2p r).", needs="nvlink"),
}  # fmt: skip
"""The kinds, for commands, the daemon's counter and its finding."""
