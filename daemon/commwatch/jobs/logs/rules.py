"""The texts by which warnings of NCCL and messages of torch are told apart; the first rule that fits counts.

Every repetition has an upper bound, so that no line can make a search take long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Category: TypeAlias = Literal[
    "cuda",
    "oom",  # no memory was left, on the GPU or for the job
    "crash",  # a process of the job ended by itself
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
    "shm",
    "version",
    "dup_gpu",
    "no_algo",
    "mismatch",
    "usage",  # NCCL was called with what it does not take
    "other",  # a warning that no rule knows
    "ib_flush",
    "remote",
    "timeout",
    "teardown",
]
"""What a warning is about."""

Side: TypeAlias = Literal["network", "gpu", "nvlink", "host", "config", "program", "peer", "symptom", "unknown"]
"""Where the cause is to be looked for; ``symptom``: somewhere else."""

SIDES: Mapping[Category, Side] = {
    "cuda": "gpu",
    "oom": "program",
    "crash": "program",
    "ib_async": "network",
    "ib_retry": "network",
    "ib_rnr": "peer",
    "ib_local_prot": "host",
    "ib_remote_access": "peer",
    "ib_setup": "config",
    "ib_other": "network",
    "nvls": "nvlink",
    "mnnvl": "nvlink",
    "p2p": "host",
    "socket": "network",
    "no_interface": "config",
    "shm": "config",
    "version": "config",
    "dup_gpu": "config",
    "no_algo": "config",
    "mismatch": "program",
    "usage": "program",
    "other": "unknown",
    "ib_flush": "symptom",
    "remote": "symptom",
    "timeout": "symptom",
    "teardown": "symptom",
}

PRECEDENCE: tuple[frozenset[Category], ...] = (
    frozenset({"cuda"}),
    frozenset({"ib_async"}),
    frozenset({"ib_retry", "ib_rnr", "ib_local_prot", "ib_remote_access", "ib_setup"}),
    frozenset({"ib_other"}),
    frozenset({"nvls", "mnnvl", "p2p"}),
    frozenset({"socket"}),
    frozenset({"no_interface", "shm", "version", "dup_gpu", "no_algo"}),
    frozenset({"oom", "crash", "mismatch", "usage"}),
)
"""Of what is seen together, the likelier cause first; what is not named comes after these, symptoms last of all."""

ENDINGS: frozenset[Category] = frozenset({"oom", "crash"})
"""What ends one process of a job, which takes its connections with it."""
SEVERED: frozenset[Category] = frozenset({"ib_retry", "ib_rnr", "ib_remote_access", "ib_other", "socket"})
"""What the other processes may then see: after an ending these are no cause."""

COMPLETIONS: dict[int, Category] = {
    4: "ib_local_prot",
    5: "ib_flush",
    9: "ib_remote_access",
    10: "ib_remote_access",
    11: "ib_remote_access",
    12: "ib_retry",
    13: "ib_rnr",
}
"""By the status of a work completion (``ibv_wc_status``)."""

_MESSAGES: tuple[tuple[Category, str], ...] = (
    # A process that ends tears its contexts down under calls that are still under way.
    ("teardown", r"driver shutting down|context is destroyed"),
    # CUDA says this until the fabric manager has set the switches up.
    ("nvls", r"system not yet initialized"),
    ("p2p", r"peer access is not supported|failed to peer with device|CUDA IPC handle|IPC memory handle"),
    ("oom", r"(?:Cuda|CUDA|HIP) failure (?:2 )?'?(?:out of memory|hipErrorOutOfMemory)"),
    ("cuda", r"(?:Cuda|CUDA|HIP) failure"),
    ("ib_async", r"async (?:error |fatal )?event|GID (?:table )?(?:change|refresh)|ibv_get_async_event failed"),
    ("ib_async", r"NET/IB ?: .{0,60}unknown event type \("),
    ("ib_setup", r"Call to (?:ibv_|mlx5dv_|ncclIbDevx)\w{1,60} failed|ibv_\w{1,60}\(?\)? failed|\bibv_set_ece\b"),
    ("ib_setup", r"NET/IB ?: .{0,120}(?:GID|memlock|Unable to open device|No device)"),
    ("ib_setup", r"ncclIbRoceGetVersionNum|Remote IB device is incompatible"),
    ("ib_setup", r"NET/OFI .{0,160}(?:[Ii]nitialization failed|Failing initialization|fi_\w{1,24}\(\) call failed)"),
    ("ib_other", r"Got CQE with error|NET/OFI Request .{0,200}completed with error"),
    ("dup_gpu", r"Duplicate GPU detected|Multiple [Rr]anks (?:detected using|are using) the same GPU"),
    ("version", r"[Mm]ismatched? .{0,40}[Vv]ersion|[Vv]ersion mismatch"),
    ("mnnvl", r"\bMNNVL\b|\bIMEX\b"),
    ("nvls", r"NVLink SHARP|\bNVLS\b|[Mm]ulticast"),
    ("shm", r"/dev/shm|shared memory (?:segment|file|mapping)"),  # noqa: S108 - a text
    ("no_interface", r"[Nn]o (?:\w{1,12} ){0,3}interface found"),
    ("no_algo", r"[Nn]o algorithm/protocol |(?:parsing|[Ii]nvalid).{0,60}NCCL_(?:ALGO|PROTO)"),
    ("mismatch", r"[Mm]essage truncated : receiv|collective mismatch|Bootstrap Root : mismatch|mismatch with rank 0"),
    ("teardown", r"Broken pipe"),
    ("remote", r"Connection closed by (?:remote )?peer|remote process exited|recv failed while polling for opId"),
    # What a proxy says of a call that failed elsewhere, and was told there.
    ("teardown", r"\[Proxy Service.{0,40}Failed to execute operation|Proxy Call to rank \d{1,6} failed"),
    ("socket", r"[Cc]onnect(?:ing)? to .{1,160}(?:returned|failed)|exceeded error retry count"),
    ("socket", r"Call to (?:recv|send|connect|accept|poll|bind|listen)\b.{0,200}failed"),
    ("socket", r"Connection (?:refused|reset|timed out)|(?:No route to host|Network is unreachable)"),
    ("socket", r"[Mm]essage truncated|wrong (?:type|magic) |socket state .{1,24} is not ready|socketPollConnect poll"),
    ("usage", r"[Ii]nvalid (?:root|reduction|type|argument|usage|rank|count|config)"),
    ("usage", r"is not a valid pointer|mismatchs with NCCL device"),
)  # fmt: skip

MESSAGES = tuple((category, re.compile(rule)) for category, rule in _MESSAGES)
"""Category and text of a warning of NCCL, without the words that come before the message."""

_RANK = r"^(?:\[\w{0,12}\d{1,6}\]:? ?|\d{1,6}: ?){0,3}"
"""What launchers put before each line of a process: ``[rank3]: ``, ``[default3]:``, ``3: ``."""
_EXCEPTIONS = (
    "Value|Key|Type|Index|Attribute|Assertion|Name|Import|ModuleNotFound|FileNotFound|IsADirectory|UnboundLocal|"
    "ZeroDivision|NotImplemented|Recursion|UnicodeDecode"
)
"""Errors of Python that NCCL and torch do not raise for trouble of theirs."""

_TORCH: tuple[tuple[Category, bool, str], ...] = (
    ("teardown", True, r"CUDA error: driver shutting down"),
    ("shm", True, r"DataLoader worker .{0,80}Bus error|DataLoader's workers are out of shared memory"),
    ("oom", True, r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError"),
    ("oom", True, r"\boom[-_]kill|Out of memory: Killed process|\bOUT_OF_MEMORY\b"),
    ("cuda", True, r"CUDA error: |CUDA driver error: "),
    ("timeout", True, r"Watchdog caught collective operation timeout|Timeout at NCCL work"),
    ("timeout", True, r"wait timeout after \d{1,12} ?ms|DistStoreError|Timed out (?:after \d{1,12} seconds )?waiting "),
    ("timeout", True, r"The client socket has timed out after \d|monitoredBarrier.{0,200}(?:timeout|failed to pass)"),
    ("timeout", True, r"\b[Pp]eer (?:timeout|not responding)\b|\b[Gg]roup not ready\b|connection attempt timed out"),
    ("teardown", True, r"[Hh]eartbeat monitor timed out|watchdog got stuck|\"should dump\" flag"),
    ("teardown", True, r"(?:recvValue|recvBytes|sendBytes) failed on SocketImpl|NCCL communicator was aborted"),
    ("teardown", True, r"we are taking the entire process down"),
    ("remote", True, r"gloo/transport/.{0,200}Connection (?:closed|reset) by peer"),
    ("usage", True, r"server socket has failed to (?:bind|listen).{0,200}(?:EADDRINUSE|[Aa]ddress already in use)"),
    ("mismatch", True, r"Detected mismatch between collectives on ranks"),
    ("crash", True, r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction)"),
    ("crash", True, r"\bCaught signal (?:4|7|8|11) |\bsegfault at [0-9a-f]{1,16} ip "),
    ("crash", True, r"\b[Ss]ignal (?:4|7|8|11) \(SIG(?:ILL|BUS|FPE|SEGV)\)|: Segmentation fault\b"),
    ("crash", True, _RANK + r"(?:" + _EXCEPTIONS + r")Error(?:: |$)"),
    # The status of a call, last since the lines above carry one too.
    ("crash", False, r": line \d{1,6}: {1,6}\d{1,10} Killed\b"),
    ("crash", False, r"\b[Ss]ignal 9 \(SIGKILL\)|\(exitcode: -9\)|exitcode {0,4}: -9\b"),
    ("cuda", False, r"NCCL (?:error|Error).{0,300}unhandled cuda error|ncclUnhandledCudaError"),
    ("other", False, r"NCCL (?:error|Error).{0,300}(?:unhandled system|internal) error"),
    ("other", False, r"ncclSystemError|ncclInternalError"),
    ("usage", False, r"NCCL (?:error|Error).{0,300}invalid (?:argument|usage)|ncclInvalid(?:Argument|Usage)"),
    ("remote", False, r"NCCL (?:error|Error).{0,300}remote process exited|ncclRemoteError"),
    ("timeout", False, r"NCCL (?:error|Error).{0,300}\btimeout\b|operations have failed or timed out"),
)  # fmt: skip

TORCH = tuple((category, certain, re.compile(rule)) for category, certain, rule in _TORCH)
"""Category, whether the text names the cause, and the text of a message of torch, Python or a launcher."""

HARMLESS = re.compile(
    r"Failed to open libibverbs|Failed to find CUDA library|Could not find ncclGetVersion symbol|"
    r"Cannot get incoming CPU|NET/OFI pciPath: Could not find real path|Error opening file: /sys/devices/virtual/dmi"
)
"""Warnings that NCCL and its plugins write where nothing is wrong, such as on a node without the hardware."""

HINTS: tuple[bytes, ...] = (
    b"NCCL WARN ", b"NCCL error", b"NCCL Error", b"ncclUnhandledCudaError", b"ncclSystemError", b"ncclInternalError",
    b"ncclInvalid", b"ncclRemoteError", b"NCCL work", b"NCCL operations", b"NCCL communicator", b"CUDA error: ",
    b"CUDA driver error", b"out of memory", b"utOfMemoryError", b"oom", b"Out of memory", b"OUT_OF_MEMORY",
    b"atchdog", b"timeout", b"imed out", b"DistStoreError", b"monitoredBarrier", b"not responding", b"not ready",
    b"should dump", b"failed on SocketImpl", b"taking the entire process down", b"gloo/transport/", b"server socket",
    b"Detected mismatch", b"ataLoader", b"Fatal Python error", b"Caught signal", b"segfault at ",
    b"ignal ", b"egmentation fault", b" Killed", b"xitcode", b"Error: ", b"Error\n",
)  # fmt: skip
"""A line that says something holds one of these; they are found much faster than the rules."""

CONTEXT: tuple[tuple[str, str, Category], ...] = (
    ("transport/nvls.cc", "uda failure", "nvls"),
    ("transport/multicast.cc", "uda failure", "nvls"),
)
"""Source file and text of warnings that mean something else there, and their category."""
