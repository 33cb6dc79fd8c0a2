"""Results of the audit of NCCL settings: one record of each remark, from the rules to every command that shows it.

No value of a setting is in it. The worker hands it to the daemon, the daemon to commands; metrics have counts of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

from commwatch.jobs.settings.owner import OwnedProcesses
from commwatch.node.topology.nvlink import DriverFacts

SettingSeverity: TypeAlias = Literal["harmful", "suspicious", "useless", "note"]

SEVERITIES: tuple[SettingSeverity, ...] = ("harmful", "suspicious", "useless", "note")
"""Most severe first. useless: the setting does nothing, though its author thinks it does."""

RemarkCode: TypeAlias = Literal[
    # names
    "never_read", "old_name", "removed", "not_in_version", "misspelt", "unknown_name",
    # files and values
    "malformed_line", "file_not_read", "shadowed", "unreadable_number", "not_accepted", "out_of_range",
    "file_missing", "environment_plugin",
    # between the GPUs of the node
    "p2p_off", "p2p_level_low", "old_style_level", "shm_off", "nvls_off", "cumem_off", "node_nvlink_off",
    # network
    "interface_missing", "interface_down", "interface_unsuited", "rdma_off", "adapter_missing", "adapter_prefix",
    "adapter_inactive", "adapters_few", "gdr_off", "gid_fixed", "gid_missing", "rdma_timeout", "rdma_retries",
    "many_queue_pairs", "ordering_strict", "adaptive_routing_off", "ports_not_merged", "pxn_off", "cross_nic",
    "socket_threads",
    # tuning, messages and checks
    "algorithm_forced", "protocol_forced", "buffer_small", "channels_few", "channels_many", "topology_given",
    "connect_at_start", "affinity_ignored", "messages_many", "messages_none", "launch_mode", "checks_on", "ras_off",
    "launch_blocking", "compiled_anew", "device_order", "waits_block", "errors_ignored",
    # ranks of one job
    "ranks_differ", "namespaces_differ",
]  # fmt: skip
"""Codes of remarks: a closed list, each in docs/using/nccl-settings.md."""

CODES: tuple[RemarkCode, ...] = get_args(RemarkCode)

HARMS: Mapping[str, str] = {
    "not_accepted": "it names something that NCCL does not know, and the communicator fails",
    "p2p_off": "transfers between the GPUs of the node go through the host's memory",
    "p2p_level_low": "GPUs that reach each other directly may not do so",
    "shm_off": "GPUs without a direct way to each other use the network instead of shared memory",
    "node_nvlink_off": "NVLink to other nodes is not used",
    "interface_missing": "no interface of the node fits, and NCCL does not start",
    "interface_down": "all interfaces that fit are down",
    "interface_unsuited": "the interfaces that fit lead to no other node",
    "rdma_off": "ranks on several nodes talk over TCP instead of RDMA",
    "adapter_missing": "it names no RDMA port of the node, and ranks on several nodes talk over TCP",
    "adapter_prefix": "a name without = also fits adapters with longer names",
    "adapter_inactive": "no RDMA port that fits is active",
    "gid_missing": "no connection can be made over a port whose GID entry is empty",
    "gdr_off": "transfers between nodes go through the host's memory",
    "algorithm_forced": "NCCL may not choose the algorithm by size and topology",
    "protocol_forced": "NCCL may not choose the protocol by size and topology, and LL128 can corrupt data",
    "launch_blocking": "the program waits for each kernel, and nothing overlaps",
    "ranks_differ": "the ranks of a job do not have the same value",
}
"""The harm of each code that can be harmful, as a page says it; the audit itself knows more of the node."""


WITHIN_NODE: frozenset[str] = frozenset(
    {
        "p2p_off", "p2p_level_low", "old_style_level", "shm_off", "nvls_off", "cumem_off", "algorithm_forced",
        "protocol_forced", "buffer_small", "channels_few", "channels_many",
    }
)  # fmt: skip
"""Remarks on settings whose gain or cost a probe of one node measures."""
BETWEEN_NODES: frozenset[str] = frozenset(
    {
        "gdr_off", "many_queue_pairs", "ordering_strict", "adaptive_routing_off", "ports_not_merged", "pxn_off",
        "cross_nic",
    }
)  # fmt: skip
"""Those that only a measurement over two nodes measures."""


class AuditOrder(msgspec.Struct, frozen=True, array_like=True):
    pids: tuple[int, ...] = ()
    """Processes on the GPUs."""
    driver: DriverFacts = DriverFacts(note="nothing was read of the driver")
    """GPUs and NVLinks, as the collectors of the driver read them."""
    identity: bool = False
    """Whether it is also wanted whose the processes are."""


class UnreadProcess(msgspec.Struct, frozen=True):
    """A process whose settings are not known: not one without fault."""

    pid: int
    reason: str
    """One of ``process_environment.UnreadReason``, or one of a later version."""


class SettingRemark(msgspec.Struct, frozen=True):
    code: str
    """One of ``CODES``, or one of a later version."""
    variable: str
    """As it was written, made printable; of a remark on a file, which file."""
    severity: str
    """One of ``SEVERITIES``."""
    words: str
    """The error, without the value."""
    next_step: str
    origin: str = ""
    """One of ``facts.Origin``; empty where it is not set."""
    processes: int | msgspec.UnsetType = msgspec.UNSET
    """The number of processes, where ``pids`` may be the first of them only."""
    pids: tuple[int, ...] = ()
    """Ascending; empty for what was given."""
    fallback: str = ""
    """The kind of fallback of the transport that the log of such a job shows, one of ``jobs.logs.fallbacks.FALLBACKS``,
    or one of a later version; empty for none."""

    @property
    def process_count(self) -> int:
        """The number of processes that the remark is about."""
        return len(self.pids) if self.processes is msgspec.UNSET else self.processes


class JobProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a process in its job, as its environment has it."""

    pid: int
    rank: int | None = None
    """None where no launcher names one."""
    dumps: str = ""
    """See ``facts.ProcessSettings``: a digest."""
    logs: tuple[str, ...] = ()
    """See there: identities of files."""


class AuditRecord(msgspec.Struct, frozen=True):
    read: int = 0
    """How many processes, environments or files were judged."""
    unread: tuple[UnreadProcess, ...] = ()
    """Those that were not; outside of the worker the first of them."""
    unread_count: int = 0
    """All of them."""
    remarks: tuple[SettingRemark, ...] = ()
    """Most severe first."""
    remarks_left_out: int = 0
    """Further remarks, none more severe than those that are here."""
    jobs: tuple[tuple[int, ...], ...] = ()
    """The processes of each job that a launcher names."""
    single_node: tuple[int, ...] = ()
    """Processes whose launcher says that their job runs on this node only."""
    owners: tuple[OwnedProcesses, ...] = ()
    """Whose they are, by their cgroups; empty where that is not wanted."""
    processes: tuple[JobProcess, ...] | msgspec.UnsetType = msgspec.UNSET
    """Those with a rank, dumps or logs; of more than 512 the first. For the daemon alone: no document has them."""
