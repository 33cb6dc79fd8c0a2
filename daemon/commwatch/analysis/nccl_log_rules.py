"""The texts by which warnings of NCCL and messages of torch are told apart; the first rule that fits counts.

Every repetition has an upper bound, so that no line can make a search take long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Category: TypeAlias = Literal[
    "cuda",
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
    frozenset({"mismatch", "usage"}),
)
"""Of what is seen together, the likelier cause first; what is not named comes after these, symptoms last of all."""

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
    ("cuda", r"(?:Cuda|CUDA|HIP) failure"),
    ("ib_async", r"async (?:error |fatal )?event|GID (?:table )?(?:change|refresh)|ibv_get_async_event failed"),
    ("ib_async", r"NET/IB ?: .{0,60}unknown event type \("),
    ("ib_setup", r"Call to (?:ibv_|mlx5dv_|ncclIbDevx)\w{1,60} failed|ibv_\w{1,60}\(?\)? failed|\bibv_set_ece\b"),
    ("ib_setup", r"NET/IB ?: .{0,120}(?:GID|memlock|Unable to open device|No device)"),
    ("ib_other", r"Got CQE with error"),
    ("dup_gpu", r"Duplicate GPU detected|Multiple [Rr]anks (?:detected using|are using) the same GPU"),
    ("version", r"[Mm]ismatched? .{0,40}[Vv]ersion|[Vv]ersion mismatch"),
    ("mnnvl", r"\bMNNVL\b|\bIMEX\b"),
    ("nvls", r"NVLink SHARP|\bNVLS\b|[Mm]ulticast"),
    ("shm", r"/dev/shm|shared memory (?:segment|file|mapping)"),  # noqa: S108 - a text
    ("no_interface", r"[Nn]o (?:\w{1,12} ){0,3}interface found"),
    ("no_algo", r"[Nn]o algorithm/protocol |(?:parsing|[Ii]nvalid).{0,60}NCCL_(?:ALGO|PROTO)"),
    ("mismatch", r"[Mm]essage truncated : receiv|collective mismatch|Bootstrap Root : mismatch|mismatch with rank 0"),
    ("teardown", r"Broken pipe"),
    ("remote", r"Connection closed by (?:remote )?peer|remote process exited"),
    ("socket", r"[Cc]onnect(?:ing)? to .{1,160}(?:returned|failed)|exceeded error retry count"),
    ("socket", r"Call to (?:recv|send|connect|accept|poll|bind|listen)\b.{0,200}failed"),
    ("socket", r"Connection (?:refused|reset|timed out)|(?:No route to host|Network is unreachable)"),
    ("socket", r"[Mm]essage truncated|wrong (?:type|magic) |socket state .{1,24} is not ready"),
    ("usage", r"[Ii]nvalid (?:root|reduction|type|argument|usage|rank|count|config)"),
    ("usage", r"is not a valid pointer|mismatchs with NCCL device"),
)  # fmt: skip

MESSAGES = tuple((category, re.compile(rule)) for category, rule in _MESSAGES)
"""Category and text of a warning of NCCL, without the words that come before the message."""

_TORCH: tuple[tuple[Category, bool, str], ...] = (
    ("teardown", True, r"CUDA error: driver shutting down"),
    ("cuda", True, r"CUDA error: |CUDA driver error: |CUDA out of memory"),
    ("timeout", True, r"Watchdog caught collective operation timeout|Timeout at NCCL work"),
    ("timeout", True, r"wait timeout after \d{1,12} ?ms|DistStoreError|Timed out waiting \d{1,12} ?ms"),
    ("teardown", True, r"[Hh]eartbeat monitor timed out|watchdog got stuck|\"should dump\" flag"),
    ("teardown", True, r"(?:recvValue|recvBytes|sendBytes) failed on SocketImpl|NCCL communicator was aborted"),
    ("teardown", True, r"we are taking the entire process down"),
    # The status of a call, last since the lines above carry one too.
    ("cuda", False, r"NCCL (?:error|Error).{0,300}unhandled cuda error|ncclUnhandledCudaError"),
    ("other", False, r"NCCL (?:error|Error).{0,300}(?:unhandled system|internal) error"),
    ("other", False, r"ncclSystemError|ncclInternalError"),
    ("usage", False, r"NCCL (?:error|Error).{0,300}invalid (?:argument|usage)|ncclInvalid(?:Argument|Usage)"),
    ("remote", False, r"NCCL (?:error|Error).{0,300}remote process exited|ncclRemoteError"),
    ("timeout", False, r"NCCL (?:error|Error).{0,300}\btimeout\b|operations have failed or timed out"),
)  # fmt: skip

TORCH = tuple((category, certain, re.compile(rule)) for category, certain, rule in _TORCH)
"""Category, whether the text names the cause, and the text of a message of torch."""

CONTEXT: tuple[tuple[str, str, Category], ...] = (
    ("transport/nvls.cc", "uda failure", "nvls"),
    ("transport/multicast.cc", "uda failure", "nvls"),
)
"""Source file and text of warnings that mean something else there, and their category."""
