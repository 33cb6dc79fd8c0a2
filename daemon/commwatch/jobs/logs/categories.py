"""The categories of messages in NCCL's logs: the side of each, its meaning in plain words, and the first step.

The patterns are in ``rules``: few processes need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Category: TypeAlias = Literal[
    "cuda",
    "oom",  # no memory was left, on the GPU or for the job
    "pcie",  # a PCIe device or path reported an error that was not corrected
    "limit",  # a process met a limit of open files or of processes, or a file system is full
    "waiting",  # the job waits for resources of the cluster
    "unreachable",  # the launcher could not start a process on a node
    "crash",  # a process of the job ended by itself
    "killed",  # a process of the job was ended from outside, as happens where memory runs out
    "ib_async",  # the adapter or its link reported an event
    "ib_retry",
    "ib_rnr",
    "ib_local_prot",
    "ib_remote_access",
    "ib_setup",
    "ib_other",
    "nvls",
    "mnnvl",
    "p2p",
    "socket",
    "no_interface",
    "shm",  # no room in shared memory
    "shm_gone",  # a segment that a peer had made is not there
    "version",
    "dup_gpu",
    "no_algo",
    "mismatch",
    "usage",  # NCCL was called with what it does not take
    "other",  # a warning that no rule knows
    "ib_flush",
    "remote",
    "timeout",
    "cancelled",  # the scheduler or a person ended the job
    "teardown",
]
"""The subject of a warning."""

Side: TypeAlias = Literal["network", "gpu", "nvlink", "host", "config", "program", "peer", "symptom", "unknown"]
"""The side on which to search for the cause; ``symptom``: elsewhere."""


class About(NamedTuple):
    side: Side
    happened: str
    """As a sentence."""
    next_step: str


CATEGORIES: Mapping[Category, About] = {
    "cuda": About("gpu", "A GPU failed, or a call of CUDA on it.",
        "Look for an Xid of that GPU in the kernel log. Without one, what CUDA says in the line decides between "
        "driver, visible GPUs (CUDA_VISIBLE_DEVICES) and program."),
    "pcie": About("host", "A PCIe device, or the path to it, reported an error that was not corrected.",
        "Look at the device that the line names and at the bridge above it (lspci -tv). If it stays, drain the node; "
        "once it is free, power cycle it; if that does not help, call the vendor (PCIe card: reseat it first)."),
    "limit": About("config", "A process met a limit of the system: of open files, of processes, or of a file system.",
        "Compare /proc/PID/limits with what the job needs, and raise the limit."),
    "waiting": About("config", "The job waits for resources that the cluster does not give.",
        "Compare what the job asks for (GPUs, nodes) with what is free: ray status, sinfo and squeue, kubectl describe "
        "pod."),
    "unreachable": About("config", "The launcher could not start processes on a node.",
        "Log in to the node that is named in the same way (ssh NODE true, without a password), and correct the list of "
        "hosts, the key or the host key."),
    "oom": About("program", "A process had no memory left, on its GPU or on the host.",
        "Lower batch or sequence length, or give the job more; look who else holds memory on that GPU."),
    "crash": About("program", "A process of the job ended by itself; all others lost it.",
        "Read what that process wrote before this line; if it wrote nothing, look in the kernel log of its node "
        "(segfault, oom-kill, Xid)."),
    "killed": About("program",
        "A process of the job was killed from outside, most often because memory of host or job ran out.",
        "Look for oom-kill in the kernel log and at the job's limit of memory; without one, somebody or the launcher"
        " ended it."),
    "ib_async": About("network",
        "An RDMA adapter reported an event of its own: its link, a queue or its addresses changed.",
        "Look at link, cable and switch port of that adapter, and at the kernel log."),
    "ib_retry": About("network", "An RDMA transfer was given up, because the other end never answered.",
        "Look whether the peer had ended before; if not, at cable, switch and route between the two, on RoCE also at"
        " GID index, MTU and flow control."),
    "ib_rnr": About("peer", "The receiving end of an RDMA transfer was not ready in time.",
        "Look at the peer that is named: its process hangs or is overloaded."),
    "ib_local_prot": About("host", "An RDMA adapter was not allowed to reach memory of this host or GPU.",
        "Look at GPUDirect RDMA (nvidia-peermem or DMA-BUF), ACS and ATS of the host."),
    "ib_remote_access": About("peer", "The peer refused an RDMA transfer.",
        "Look at the peer that is named: it failed before, or did not register its memory."),
    "ib_setup": About("config", "A connection over RDMA could not be set up.",
        "Look at NCCL_IB_GID_INDEX, routes between the ports, the limit of locked memory, and on EFA at the version "
        "of libfabric and the security group."),
    "ib_other": About("network", "An RDMA transfer failed with an error that has no usual cause.",
        "Look at the adapter's counters and at the kernel log of both ends."),
    "nvls": About("nvlink", "Multicast in the NVSwitches (NVLS) could not be set up, or an NVSwitch failed.",
        "Look at the fabric manager and its log; NCCL_NVLS_ENABLE=0 goes without it."),
    "mnnvl": About("nvlink", "NVLink between nodes does not work.",
        "Look at IMEX: its service, its channels and its list of nodes."),
    "p2p": About("host", "Two GPUs of a node cannot reach each other directly.",
        "Look at what nvidia-smi topo -p2p r says. If they have P2P: at ACS and IOMMU of the host, and whether each "
        "process sees the GPU of the other (Slurm's --gpus-per-task and --gpu-bind hide it). If they have none, switch "
        "off what needs it, such as an all-reduce of the program's own."),
    "socket": About("network", "A connection over TCP failed.",
        "Look whether the peer that is named still ran; if so, at firewall, route and NCCL_SOCKET_IFNAME."),
    "no_interface": About("config", "NCCL found no network interface that it may use.",
        "Correct NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY."),
    "shm": About("config",
        "A process could not get shared memory, most often because that of the host or container is too small.",
        "Look at df -h /dev/shm. If it is small or full, give the container more (docker --shm-size, an emptyDir of "
        "medium Memory); if not, look at its rights and at files of earlier jobs in it."),
    "shm_gone": About("config",
        "A process could not attach to shared memory that another process of the job had made.",
        "Look whether that process ended first, and whether all share one /dev/shm (one container, or --ipc=host) and "
        "run as the same user."),
    "version": About("config", "Versions of NCCL in this job do not go together.",
        "Use one image and one environment for all ranks."),
    "dup_gpu": About("config", "Two ranks use the same GPU.",
        "Look at CUDA_VISIBLE_DEVICES and at how the program chooses its device."),
    "no_algo": About("config", "No algorithm is left that NCCL may use.",
        "Remove NCCL_ALGO and NCCL_PROTO, or allow more."),
    "mismatch": About("program", "The ranks did not make the same call with the same sizes.",
        "Look at what makes ranks of the program take different ways."),
    "usage": About("program", "NCCL or torch was called with what it does not take.",
        "Correct the call that is named; a port in use belongs to a job that still runs."),
    "other": About("unknown", "NCCL warned of something that no rule here knows.",
        "Read the line itself and those around it."),
    "ib_flush": About("symptom", "RDMA transfers were dropped after an earlier error of the same connection.",
        "Look for the earlier error, in this log or in that of the peer."),
    "remote": About("symptom", "A peer went away, or its connection broke.",
        "Look at the logs of the other ranks for the one that ended first; if none did, at the network between them."),
    "timeout": About("symptom", "Processes waited in vain for others.",
        "Look at the logs of the ranks that do not report it: one that ended, or never came, has the cause. If all "
        "report it, look at the path between them (commwatch cluster check) and at their stacks (py-spy dump)."),
    "cancelled": About("symptom",
        "The job was ended by the scheduler or by hand: its time was over, or it had to make room.",
        "Ask the scheduler why (sacct, scontrol show job); if the job hung before, earlier lines say so."),
    "teardown": About("symptom", "The job was being taken down; something had failed before.",
        "Look for the cause in the logs of the other ranks."),
}  # fmt: skip

SIDES: Mapping[Category, Side] = {category: about.side for category, about in CATEGORIES.items()}


UNKNOWN_END = About("unknown", "Something failed or ended; nothing here says why, or whether the job went on.",
                    "Read what that process wrote before this line; of several ranks, begin with the one that failed "
                    "first.")  # fmt: skip
"""Of a ``crash`` or ``other`` that only a status or a sign shows."""

EXCEPTION = About("unknown", "The program ended with an exception; its words name no cause that commwatch knows.",
                  "Read the traceback above it; of several ranks, begin with the one that failed first.")  # fmt: skip
"""Of an exception that is only a sign of an end."""

AMD = About("gpu", "A GPU failed, or a call of HIP on it.",
            "Look for amdgpu in the kernel log (ring timeout, GPU reset, RAS). Without a line of it, what HIP says in "
            "the line decides between driver, visible GPUs (HIP_VISIBLE_DEVICES) and program.")  # fmt: skip
"""Of ``cuda`` in a log of AMD's."""

PRECEDENCE: tuple[frozenset[Category], ...] = (
    frozenset({"cuda", "pcie"}),
    frozenset({"ib_async"}),
    frozenset({"ib_retry", "ib_rnr", "ib_local_prot", "ib_remote_access", "ib_setup"}),
    frozenset({"ib_other"}),
    frozenset({"nvls", "mnnvl", "p2p"}),
    frozenset({"socket"}),
    frozenset({"no_interface", "shm", "shm_gone", "version", "dup_gpu", "no_algo", "limit", "unreachable"}),
    frozenset({"oom", "crash", "killed", "mismatch", "usage", "waiting"}),
)
"""Of what is seen together, the likelier cause first; what is not named comes after these, symptoms last of all."""

ENDINGS: frozenset[Category] = frozenset({"oom", "crash", "killed", "cancelled"})
"""Categories that end processes of a job, and their connections with them."""
SEVERED: frozenset[Category] = frozenset({"ib_retry", "ib_rnr", "ib_remote_access", "ib_other", "socket"})
"""Categories that the other processes may then report: after an ending these are no cause."""
