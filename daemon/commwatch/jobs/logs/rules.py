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
"""What a warning is about."""

Side: TypeAlias = Literal["network", "gpu", "nvlink", "host", "config", "program", "peer", "symptom", "unknown"]
"""Where the cause is to be looked for; ``symptom``: somewhere else."""

SIDES: Mapping[Category, Side] = {
    "cuda": "gpu",
    "oom": "program",
    "crash": "program",
    "killed": "program",
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
    "shm_gone": "config",
    "version": "config",
    "dup_gpu": "config",
    "no_algo": "config",
    "mismatch": "program",
    "usage": "program",
    "other": "unknown",
    "ib_flush": "symptom",
    "remote": "symptom",
    "timeout": "symptom",
    "cancelled": "symptom",
    "teardown": "symptom",
}

PRECEDENCE: tuple[frozenset[Category], ...] = (
    frozenset({"cuda"}),
    frozenset({"ib_async"}),
    frozenset({"ib_retry", "ib_rnr", "ib_local_prot", "ib_remote_access", "ib_setup"}),
    frozenset({"ib_other"}),
    frozenset({"nvls", "mnnvl", "p2p"}),
    frozenset({"socket"}),
    frozenset({"no_interface", "shm", "shm_gone", "version", "dup_gpu", "no_algo"}),
    frozenset({"oom", "crash", "killed", "mismatch", "usage"}),
)
"""Of what is seen together, the likelier cause first; what is not named comes after these, symptoms last of all."""

ENDINGS: frozenset[Category] = frozenset({"oom", "crash", "killed", "cancelled"})
"""What ends processes of a job, which takes their connections with it."""
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
    ("p2p", r"peer access is not supported|failed to peer with device|(?:CUDA IPC|IPC memory) handle|IpcGetMemHandle"),
    ("oom", r"(?:Cuda|CUDA|HIP) failure (?:2 )?'?(?:out of memory|hipErrorOutOfMemory)"),
    ("cuda", r"(?:Cuda|CUDA|HIP) failure"),
    ("ib_async", r"async (?:error |fatal )?event|GID (?:table )?(?:change|refresh)|ibv_get_async_event failed"),
    ("ib_async", r"NET/IB ?: .{0,60}unknown event type \("),
    ("ib_setup", r"Call to (?:ibv_|mlx5dv_|ncclIbDevx)\w{1,60} failed|ibv_\w{1,60}\(?\)? failed|\bibv_set_ece\b"),
    ("ib_setup", r"NET/IB ?: .{0,120}(?:GID|memlock|Unable to open device|No device)"),
    ("ib_setup", r"ncclIbRoceGetVersionNum|Remote IB device is incompatible"),
    ("ib_setup", r"NET/OFI (?!Request).{0,300}(?:[Ff]ail|[Uu]nable|[Cc]ould ?n[o']t|RC: -?\d)"),
    ("ib_other", r"Got CQE with error|NET/OFI Request .{0,200}completed with error"),
    ("dup_gpu", r"Duplicate GPU detected|Multiple [Rr]anks (?:detected using|are using) the same GPU"),
    ("version", r"[Mm]ismatched? .{0,40}[Vv]ersion|[Vv]ersion mismatch"),
    ("mnnvl", r"\bMNNVL\b|\bIMEX\b"),
    ("nvls", r"NVLink SHARP|\bNVLS\b|[Mm]ulticast"),
    ("shm_gone", r"(?:/dev/shm|shared memory segment).{0,300}No such file|attaching to shared memory segment"),
    ("shm", r"posix_fallocate failed|/dev/shm|shared memory (?:segment|file|mapping)"),
    ("no_interface", r"[Nn]o (?:\w{1,12} ){0,3}interface found|neither AF_INET"),
    ("no_algo", r"[Nn]o algorithm/protocol |(?:parsing|[Ii]nvalid).{0,60}NCCL_(?:ALGO|PROTO)"),
    ("mismatch", r"[Mm]essage truncated : receiv|collective mismatch|Bootstrap Root : mismatch|mismatch with rank 0"),
    ("mismatch", r"Mismatched collective detected"),
    ("teardown", r"Broken pipe"),
    ("remote", r"Connection closed by (?:remote )?peer|remote process exited|recv failed while polling for opId"),
    # What a proxy says of a call that failed elsewhere, and was told there.
    ("teardown", r"\[Service thread\] Error encountered|failed in destroy/abort"),
    ("teardown", r"\[Proxy Service.{0,40}Failed to execute operation|Proxy Call to rank \d{1,6} failed"),
    ("socket", r"[Cc]onnect(?:ing)? to .{1,160}(?:returned|failed)|exceeded error retry count"),
    ("socket", r"Call to (?:recv|send|connect|accept|poll|bind|listen)\b.{0,200}failed"),
    ("socket", r"Connection (?:refused|reset|timed out)|(?:No route to host|Network is unreachable)"),
    ("socket", r"[Mm]essage truncated|wrong (?:type|magic) |socket state .{1,24} is not ready|socketPollConnect poll"),
    ("usage", r"[Ii]nvalid (?:root|reduction|type|argument|usage|rank|count|config)"),
    ("usage", r"ranks has already checked in|is not a valid pointer|mismatchs with NCCL device"),
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
    ("shm", True, r"[Uu]nexpected bus error encountered in worker"),
    ("oom", True, r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"),
    ("oom", True, r"\boom[-_]kill|Out of memory: Killed process|\bOUT_OF_MEMORY\b|OOMKilled|: Out Of Memory$"),
    ("oom", True, r"killed due to (?:memory pressure|the node running low on memory)|running low on memory"),
    ("oom", True, r"Exceeded job memory limit"),
    ("dup_gpu", True, r"Duplicate GPU detected : rank \d"),
    ("version", True, r"undefined symbol: nccl"),
    # Of the kernel.
    ("cuda", True, r"NVRM: Xid \(|\bXid \d{1,3} (?:PCI:|GPC)|fallen off the bus|determine the device handle for GPU"),
    ("cuda", True, r"amdgpu.{0,200}(?:GPU reset begin|\*ERROR\* ring \S{1,40} timeout|uncorrectable hardware error)"),
    ("cuda", True, r"amdgpu: sq_intr: error"),
    ("nvls", True, r"nvswitch\d{0,3}: SXid \(.{1,80}\bFatal"),
    ("ib_setup", True, r"infiniband \S{1,40}: Failed to |Failed to modify QP to "),
    ("ib_other", True, r"\bmlx[45]: .{0,120}got completion with error"),
    ("ib_other", True, r"libfabric:.{0,80}:efa:cq:.{0,120}\berr: \d"),
    ("ib_setup", True, r"WARN: Function: .{0,120}NET/OFI .{0,200}RC: -\d"),
    ("socket", True, r"include/socket\.h:\d{1,5} WARN (?:Call to|Connect|Socket)"),
    ("cuda", True, r"(?:CUDA|HIP) error ?(?:\(\S{1,300}\))?: |CUDA driver error: |cuda runtime error \(\d"),
    ("cuda", True, r"Triton Error \[CUDA\]|\bCUDA_ERROR_[A-Z]"),
    ("timeout", True, r"Watchdog caught collective operation timeout|Timeout at NCCL work"),
    ("timeout", True, r"wait timeout after \d{1,12} ?ms|DistStoreError|Timed out (?:after \d{1,12} seconds )?waiting "),
    ("timeout", True, r"Timed out initializing process group|\bDEADLINE_EXCEEDED\b|Barrier timed out"),
    ("timeout", True, r"got (?:error|exception): (?:Socket )?Timeout|Timeout waiting for key|\bSocket Timeout$"),
    ("timeout", True, r"waitForInput: .{0,300}(?:timed out after \d|likely a timeout)"),
    ("timeout", True, r"The client socket has timed out after \d|monitoredBarrier.{0,200}(?:timeout|failed to pass)"),
    ("timeout", True, r"\bheartbeat timeout\. This indicates"),
    ("timeout", True, r"\b[Pp]eer (?:timeout|not responding)\b|\b[Gg]roup not ready\b|connection attempt timed out"),
    ("teardown", True, r"[Hh]eartbeat monitor timed out|watchdog got stuck|\"should dump\" flag"),
    ("teardown", True, r"(?:recvValue|recvBytes|sendBytes) failed on SocketImpl|NCCL communicator was aborted"),
    ("teardown", True, r"we are taking the entire process down"),
    ("remote", True, r"gloo/transport/.{0,200}Connection (?:closed|reset) by peer"),
    ("remote", True, r"store->get\(.{1,80}got error: (?:Connection|Broken|[Ff]ailed to recv)"),
    ("remote", True, r"has been marked dead because|its node has died|was running on is dead|NodeDiedError"),
    ("remote", True, r"Node failure on \S|DUE TO NODE FAILURE"),
    ("remote", True, r"Horovod has been shut down|async NCCL error: remote process exited"),
    ("socket", True, r"connectFullMesh failed|gloo/transport/.{0,200}(?:connect \[|refused|unreachable|No route)"),
    ("usage", True, r"server socket has failed to (?:bind|listen).{0,200}(?:EADDRINUSE|[Aa]ddress already in use)"),
    ("usage", True, r"Error: (?:\[Errno 98\] )?Address already in use"),
    ("mismatch", True, r"Detected mismatch between collectives on ranks|DDP expects same model across all ranks"),
    ("crash", True, r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction)"),
    ("crash", True, r"\bCaught signal (?:4|7|8|11) |\bsegfault at [0-9a-f]{1,16} ip "),
    ("crash", True, r"\b[Ss]ignal (?:4|7|8|11) \(SIG(?:ILL|BUS|FPE|SEGV)\)|(?:^|: )(?:Segmentation fault|Bus error)\b"),
    ("crash", True, r"(?:exitcode {0,4}:|return code =|[Ee]xit(?:ed with)?(?: exit)? code:?) -(?:4|7|8|11)\b"),
    ("crash", True, r"exited on signal (?:4|7|8|11) "),
    ("crash", True, _RANK + r"(?:" + _EXCEPTIONS + r")Error(?:: |$)"),
    ("cancelled", True, r"\*\*\* (?:JOB|STEP) \S{1,40} ON \S{1,80} CANCELLED AT|this job is preempted"),
    ("cancelled", True, r"SignalException: Process \d{1,10} got signal: (?:1|2|15)\b|Received (?:1|2|15) death signal"),
    ("cancelled", True, r"Received SIGTERM: 15|closing signal SIGHUP|Timed out waiting for job step to complete"),
    ("cancelled", True, r"(?:^|[\]: ])Terminated ?$"),
    # The status of a call or of a process, last since the lines above carry one too.
    ("killed", False, r"^Killed$|srun: error: .{1,200}: Killed$"),
    ("killed", False, r"[Ee]xit(?:ed with)?(?: exit)? code:? {1,6}(?:137|-9)\b"),
    ("killed", False, r": line \d{1,6}: {1,6}\d{1,10} Killed\b|killed by signal: Killed|exited on signal 9\b"),
    ("killed", False, r"\b[Ss]ignal 9 \(SIGKILL\)|\(exitcode: -9\)|exitcode {0,4}: -9\b|return code = -9\b"),
    ("cuda", False, r"NCCL (?:error|Error|failure).{0,300}unhandled cuda error|ncclUnhandledCudaError"),
    ("other", False, r"NCCL (?:error|Error|failure).{0,300}(?:unhandled system|internal) error"),
    ("other", False, r"ncclSystemError|ncclInternalError"),
    ("usage", False, r"NCCL (?:error|Error|failure).{0,300}invalid (?:argument|usage)|ncclInvalid(?:Argument|Usage)"),
    ("remote", False, r"NCCL (?:error|Error|failure).{0,300}remote process exited|ncclRemoteError"),
    ("timeout", False, r"NCCL (?:error|Error|failure).{0,300}\btimeout\b|operations have failed or timed out"),
)  # fmt: skip

TORCH = tuple((category, certain, re.compile(rule)) for category, certain, rule in _TORCH)
"""Category, whether the text names the cause, and the text of a message of torch, Python or a launcher."""

_LOGGER = r"(?:\([^)]{1,80}\) )?(?:ERROR [\d-]{5,10} [\d:]{8} (?:\S{1,80}\]|\[\S{1,80}\]) )?"
"""What vLLM and Ray put before each line of a worker."""
_SIGNS: tuple[tuple[Category, str], ...] = (
    ("socket", r"client socket has failed to connect to (?!.{0,200}errno: 97)|\(gai error: -?\d"),
    ("socket", r"TCP client failed to connect|failed to connect to all addresses"),
    ("socket", r"The connection to the C10d store has failed"),
    ("timeout", r"While waitForInput, poolFD failed|timed out after waiting for"),
    ("crash", r"ChildFailedError|Root Cause \(first observed|error file defined for parent|closing signal SIG"),
    ("crash", r"exitcode {0,4}[:=] ?-?[1-9]|return code(?: =|:)? -?[1-9]"),
    ("crash", r"[Ee]xit(?:ed with)? (?:exit )?code:? {1,6}-?[1-9]|exit status [1-9]"),
    ("crash", r"non-zero (?:exit )?(?:code|status)"),
    ("crash", r"ActorDiedError|RayActorError|RayTaskError|worker died or was killed|worker process has died"),
    ("crash", r"EngineCore failed to start|[Gg]ot fatal signal|sigquit from a child|core dumped"),
    ("crash", r"MPI_ABORT was invoked|\bterminated with |\b(?:aborted|aborting|crashed|died|killed)\b"),
    ("crash", r"\*\*\* (?:Process received signal|Aborted at)|catches a failure signal|(?:Container|Pod) failed"),
    ("crash", r"^.{0,2000}\bterminate called |Traceback \(most recent call last"),
    ("crash", _RANK + _LOGGER + r"(?:\w{1,40}\.){0,8}\w{0,40}(?:Error|Exception):?(?: |$)"),
    # What programs of any kind write of the end of something, whatever it is.
    ("other", r"Exception raised from |\bframe #\d{1,3}: |C\+\+ (?:Call Stacks|Traceback)|EnforceNotMet"),
    ("other", r"INTERNAL ASSERT FAILED|[Cc]heck failed: |\b[Ss]tack trace:|[Uu]nhandled exception|\b[Ff]atal error\b"),
    ("other", r"\bError (?:executing|during|while|in)\b|\[[EF]\d{3,4} \d\d:\d\d:\d\d|\d\d:\d\d:\d\d\.\d{6}: [EF] "),
    ("other", r"(?:^|[\s\[(|:])(?:ERROR|FATAL|CRITICAL|FAILED|Fatal|Aborted|panic)(?:$|[\s\]):,|!])"),
)  # fmt: skip

SIGNS = tuple((category, False, re.compile(rule)) for category, rule in _SIGNS)
"""Signs that a job ended or never began, without the reason; programs also write them where they go on, so they are
asked only of a whole log that tells nothing else."""

HARMLESS = re.compile(
    r"Failed to open libibverbs|Failed to find CUDA library|Could not find ncclGetVersion symbol|"
    r"event ?: (?:port active|client reregistration)|unknown event type \((?:9|17)\)|"
    r"Cannot get incoming CPU|NET/OFI pciPath: Could not find real path|Error opening file: /sys/devices/virtual/dmi"
)
"""Warnings that NCCL and its plugins write where nothing is wrong, such as on a node without the hardware."""

VAGUE = re.compile(r"(?:Cuda|CUDA|HIP) failure (?:80[01] )?'operation not (?:permitted|supported)'")
"""What CUDA says of many things, of which another warning names one."""

HINTS: tuple[bytes, ...] = (
    b"NCCL WARN ", b"NCCL error", b"NCCL Error", b"NCCL failure", b"ncclUnhandledCudaError", b"ncclSystemError",
    b"ncclInternalError", b"ncclInvalid", b"ncclRemoteError", b"NCCL work", b"NCCL operations", b"NCCL communicator",
    b"CUDA error", b"HIP error", b"cuda runtime error", b"Triton Error", b"CUDA_ERROR", b"CUDA driver error",
    b"ut of memory", b"utOfMemoryError", b"oom", b"OUT_OF_MEMORY", b"OOM", b"Out Of Memory", b"memory pressure",
    b"low on memory", b"Xid ", b"fallen off the bus", b"device handle for GPU", b"amdgpu", b"infiniband ",
    b"modify QP", b"libfabric:", b"NET/OFI", b"include/socket.h:", b"undefined symbol: nccl", b"Duplicate GPU",
    b"Last error:", b"atchdog", b"imeout", b"imed out", b"DistStoreError", b"monitoredBarrier", b"not responding",
    b"not ready", b"should dump", b"failed on SocketImpl", b"store->get(", b"taking the entire process down",
    b"gloo/transport/", b"connectFullMesh", b"server socket", b"ddress already in use", b"marked dead",
    b"node has died", b"is dead or", b"NodeDied", b"Horovod has been shut", b"async NCCL error", b"got completion",
    b"eartbeat timeout", b"Detected mismatch", b"DDP expects", b"ataLoader", b"us error", b"Fatal Python error",
    b"Caught signal", b"segfault at ", b"ignal ", b"egmentation fault", b"Killed", b" 137", b"code -", b"code: -",
    b"job memory limit", b"ode failure", b"NODE FAILURE", b"DEADLINE_EXCEEDED", b"xitcode", b"return code",
    b"CANCELLED", b"preempted", b"SIGTERM: 15", b"Terminated", b"SignalException", b"Error: ", b"Error\n",
)  # fmt: skip
"""A line that says something holds one of these; they are found much faster than the rules."""

SIGN_HINTS: tuple[bytes, ...] = (
    b"socket has failed", b"gai error", b"failed to connect", b"C10d store", b"poolFD", b"ChildFailed", b"Root Cause",
    b"error file defined", b"xit code", b"non-zero", b"xit status", b"ActorDied", b"ActorError", b"TaskError",
    b"MPI_ABORT", b"terminated with", b"aborted", b"aborting", b"crashed", b"died", b"killed",
    b"worker process", b"EngineCore", b"sigquit", b"core dumped", b"terminate called", b"Traceback", b"Exception",
    b"received signal", b"Aborted", b"failure signal", b"Container failed", b"Pod failed", b"frame #", b"C++ ",
    b"EnforceNotMet", b"heck failed", b"ASSERT FAILED", b"tack trace", b"nhandled exception", b"Error ", b"ERROR",
    b"FATAL", b"CRITICAL", b"FAILED", b"atal", b"panic", b": E ", b": F ", b"[E", b"[F",
)  # fmt: skip
"""So for signs, beside the others."""

GOES_ON: Mapping[bytes, int] = {b"Last error:": 1, b"Root Cause": 7, b"ActorDied": 7, b"ActorError": 7}
"""Hints of which so many lines after theirs belong to what is said."""

CONTEXT: tuple[tuple[str, str, Category], ...] = (
    ("transport/nvls.cc", "uda failure", "nvls"),
    ("transport/multicast.cc", "uda failure", "nvls"),
    ("misc/shmutils.cc", "No such file or directory", "shm_gone"),
)
"""Source file and text of warnings that mean something else there, and their category."""
