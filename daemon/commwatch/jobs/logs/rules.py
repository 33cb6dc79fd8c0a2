"""The texts that identify warnings of NCCL and messages of torch; the first rule that fits counts.

Every repetition has an upper bound, so that no line can make a search take long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from commwatch.jobs.logs.categories import Category
from commwatch.jobs.logs.messages import NO_PLAN

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
    ("limit", r"Too many open files"),
    # CUDA says this until the fabric manager has set the switches up.
    ("nvls", r"system not yet initialized"),
    ("p2p", r"peer access is not supported|failed to peer with device|(?:CUDA IPC|IPC memory) handle"),
    ("p2p", r"Ipc(?:Get|Open)MemHandle"),
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
    # The mark of newer versions for a setting that nobody made, which the older one that was loaded takes for a value.
    ("version", r"Invalid config blocking attribute value -2147483648"),
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
    # What a proxy says of a call that failed elsewhere, and was reported there.
    ("teardown", r"\[Service thread\] Error encountered|failed in destroy/abort"),
    ("teardown", r"\[Proxy Service.{0,40}Failed to execute operation|Proxy Call to rank \d{1,6} failed"),
    ("socket", r"[Cc]onnect(?:ing)? to .{1,160}(?:returned|failed)|exceeded error retry count"),
    ("socket", r"Call to (?:recv|send|connect|accept|poll|bind|listen)\b.{0,200}failed"),
    ("socket", r"Connection (?:refused|reset|timed out)|(?:No route to host|Network is unreachable)"),
    ("socket", r"[Mm]essage truncated|wrong (?:type|magic) |socket state .{1,24} is not ready|socketPollConnect poll"),
    ("usage", r"[Ii]nvalid (?:root|reduction|type|argument|usage|rank|count|config)"),
    ("usage", r"ranks has already checked in|is not a valid pointer|mismatchs with NCCL device"),
    ("other", NO_PLAN),
)  # fmt: skip

MESSAGES = tuple((category, re.compile(rule)) for category, rule in _MESSAGES)
"""Category and text of a warning of NCCL, without the words that come before the message."""

_RANK = r"^(?:\[\w{0,12}\d{1,6}\]:? ?|\d{1,6}: ?){0,3}"
"""Prefixes of launchers before each line of a process: ``[rank3]: ``, ``[default3]:``, ``3: ``."""
_EXCEPTIONS = (
    "Value|Key|Type|Index|Attribute|Assertion|Name|Import|ModuleNotFound|FileNotFound|IsADirectory|UnboundLocal|"
    "ZeroDivision|NotImplemented|Recursion|UnicodeDecode"
)
"""Errors of Python that NCCL and torch do not raise for trouble of theirs."""

_ENDED = (
    r"(?i:\b(?:exit(?:s|ed|ing)?(?: with)?(?:[ _]exit)?[ _]?(?:code|status)?|return(?:ed|s)?(?: with)?[ _]?code|"
    r"errorcode|terminated with (?:exit )?code|exited, status)\"?\s{0,8}(?:is|[:=])?\s{0,8})"
)
"""Texts of any program before the exit code of a process."""

_FAILED_NCCL = r"NCCL (?:error|Error|failure|operation \w).{0,300}"
"""Texts of torch, nccl-tests and XLA before the status of a call of NCCL."""

_TORCH: tuple[tuple[Category, bool, str], ...] = (
    ("teardown", True, r"CUDA error: driver shutting down"),
    ("shm", True, r"DataLoader(?: worker .{0,80}Bus error|'s workers are out of shared)|nexpected bus error enc"),
    ("oom", True, r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"),
    ("oom", True, r"\boom[-_]kill|\bOUT_OF_MEMORY\b|OOMKilled|: Out Of Memory$"),
    ("oom", True, r"killed due to memory pressure|running low on memory|Exceeded job memory limit"),
    ("oom", True, r"node was low on resource: memory|node had condition: \[MemoryPressure\]"),
    ("shm_gone", True, r"unable to open shared memory object .{0,200}No such file"),
    ("shm", True, r"unable to (?:open|mmap|allocate) shared memory.{0,200}(?:No space left|Cannot allocate memory)"),
    ("limit", True, r"unable to open shared memory object |received 0 items of ancdata"),
    ("ib_async", True, r"\bmlx5_core .{0,120}: TX timeout (?:detected|on queue)"),
    ("unreachable", True, r"srun: error: .{0,120}: Job credential (?:expired|revoked)"),
    # Of NCCL, where its mark or "Last error:" was cut off.
    ("dup_gpu", True, r"Duplicate GPU detected : rank \d"),
    ("shm", True, r"Error while creating shared memory segment /dev/shm/nccl-"),
    ("no_interface", True, r"ncclSocketInit: connecting to address"),
    ("version", True, r"undefined symbol: nccl"),
    ("p2p", True, r"peer access is not supported between these two devices"),
    ("cuda", True, r"(?i:Failed to initialize NVML|\bnvml(?: error)?): |NVRM: API mismatch|nvidia-container-cli: "),
    ("cuda", True, r"Error: (?:No CUDA GPUs are available|Found no NVIDIA driver)|could not select device driver"),
    ("cuda", True, r"Error: (?:The NVIDIA driver on your system is too old|.{0,200}undefined symbol: (?:cu|nv|__nv))"),
    ("cuda", True, r"Error: lib(?:cuda|cudart|cublas|cudnn|nccl|nvrtc|nvJitLink)\w{0,12}\.so.{0,40}cannot open shared"),
    ("cuda", True, r"CUDA driver is a stub library|\b(?:CUDNN|CUBLAS)_STATUS_(?!ALLOC|SUCC)[A-Z]"),
    # What CUDA itself says, whichever program and words hand it on.
    ("cuda", True, r"driver version is insufficient for CUDA runtime|unsupported display driver / cuda driver comb"),
    ("cuda", True, r"forward compatibility was attempted on non|no kernel image is available for execution"),
    ("cuda", True, r"PTX was compiled with an unsupported|CUDA-capable device(?:s|\(s\))? (?:is/)?are busy or unav"),
    ("cuda", True, r"no CUDA-capable device is detected|uncorrectable (?:ECC|NVLink) error (?:encountered|detected)"),
    ("cuda", True, r"(?i)\bcuda.{0,120}(?:invalid device (?:ordinal|function)|illegal memory access|launch failure)"),
    ("cuda", True, r"Test CUDA failure |(?i:\bcuda.{0,120}(?:misaligned address|device-side assert))"),
    ("cuda", True, r"NVRM: .{0,200}NV_ERR_RESET_REQUIRED"),
    ("p2p", True, r"custom_all_reduce\.cuh:\d{1,5} '"),
    ("limit", True, r"\[Errno 28\] No space left on device: '|Disk quota exceeded|low on resource: ephemeral-stor"),
    ("unreachable", True, r"\bssh: (?:connect to host|Could not resolve hostname) |Host key verification failed\."),
    ("unreachable", True, r"Permission denied \((?:publickey|gssapi|password|keyboard)"),
    ("unreachable", True, r"was not reachable via ssh|Command 'ssh .{0,200}' returned non-zero exit status 255"),
    ("waiting", True, r"Error: Cannot provide a placement group"),
    ("usage", True, r"More processors requested than permitted|Requested node configuration is not available"),
    ("limit", True, r"Too many open files|can't start new thread|\[Errno 11\] Resource temporarily"),
    ("limit", True, r"(?:pthread_create|fork|clone).{0,40}(?:Resource temporarily unavailable|failed: EAGAIN)"),
    # Of the kernel.
    ("pcie", True, r"PCIe Bus Error: severity=(?:Uncorrect|Fatal)|AER: .{0,10}Uncorrect\w{2,4} \((?:Non-)?Fatal"),
    ("cuda", True, r"NVRM: Xid \(|\bXid \d{1,3} (?:PCI:|GPC)|fallen off the bus|determine the device handle for GPU"),
    ("cuda", True, r"amdgpu.{0,200}(?:GPU reset begin|\*ERROR\* ring \S{1,40} timeout|uncorrectable hardware error)"),
    ("cuda", True, r"amdgpu: sq_intr: error|Memory access fault by GPU|\bHSA_STATUS_ERROR_(?!OUT_OF)"),
    ("nvls", True, r"nvswitch\d{0,3}: SXid \(.{1,80}\bFatal|\bsystem not yet initialized"),
    ("ib_retry", True, r"[Tt]ransport retry count(?:er)? exceeded"),
    ("ib_setup", True, r"infiniband \S{1,40}: Failed to |Failed to modify QP (?:\d{1,10} )?to (?!ERR)"),
    ("ib_setup", True, r"\bibv_\w{1,40}\(.{0,60}\) failed: Cannot allocate memory"),
    ("ib_other", True, r"\bmlx[45]: .{0,120}got completion with error"),
    ("ib_other", True, r"libfabric:.{0,80}:efa:cq:.{0,120}\berr: \d"),
    ("ib_setup", True, r"WARN: Function: .{0,120}NET/OFI .{0,200}(?:RC: -\d|[Cc]ould ?n[o']t)"),
    ("socket", True, r"include/socket\.h:\d{1,5} WARN (?:Call to|Connect|Socket)"),
    ("cuda", True, r"(?:CUDA|HIP) error ?(?:\(\S{1,300}\))?: |CUDA driver error: |cuda runtime error \(\d"),
    ("cuda", True, r"Triton Error \[CUDA\]|\bCUDA_ERROR_[A-Z]"),
    ("timeout", True, r"Watchdog caught collective operation timeout|Timeout at NCCL work|\bDEADLINE_EXCEEDED\b"),
    ("timeout", True, r"(?:Barrier|connection attempt|client socket has) timed out|DistStoreError|\bSocket Timeout$"),
    ("timeout", True, r"Timed out (?:after \d{1,12} seconds )?(?:waiting (?!for job step)|initializing)"),
    ("timeout", True, r"Timeout waiting for key"),
    ("timeout", True, r"wait timeout after \d|heartbeat timeout\. This|got (?:error|exception): (?:Socket )?Timeout"),
    ("timeout", True, r"(?:monitoredBarrier|waitForInput: ).{0,300}(?:timed out after \d|timeout|failed to pass)"),
    ("timeout", True, r"\bRanks? [\d, ]{1,200} failed to pass monitoredBarrier"),
    ("teardown", True, r"[Hh]eartbeat monitor timed out|watchdog got stuck|\"should dump\" flag"),
    ("teardown", True, r"NCCL communicator was aborted"),
    ("teardown", True, r"(?:recvValue|recvBytes|sendBytes) failed on SocketImpl|we are taking the entire process down"),
    ("remote", True, r"gloo/transport/.{0,200}Connection (?:closed|reset) by peer|Horovod has been shut down"),
    ("remote", True, r"Connection closed by peer \["),
    ("remote", True, r"store->get\(.{1,80}got error: (?:Connection|Broken|[Ff]ailed to recv)|async NCCL error: remote"),
    ("remote", True, r"has been marked dead because|its node has died|was running on is dead|NodeDiedError"),
    ("remote", True, r"Node failure on \S"),
    ("socket", True, r"Error: We couldn't connect to 'https?://"),
    ("socket", True, r"connectFullMesh failed|gloo/transport/.{0,200}(?:connect \[|refused|unreachable|No route)"),
    ("usage", True, r"server socket has failed to (?:bind|listen).{0,200}(?:EADDRINUSE|already in use|errno: 13)"),
    ("usage", True, r"Error: (?:\[Errno 98\] )?Address already in use"),
    ("mismatch", True, r"Detected mismatch between collectives on ranks|DDP expects same model across all ranks"),
    ("crash", True, r"\b[Ss]ignal:? (?:4|7|8|11)\b|[Rr]eceived SIG(?:SEGV|BUS|ILL|FPE)\b|\bsegfault at [0-9a-f]"),
    ("crash", True, r"(?:^|: )(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception)\b"),
    ("crash", True, _ENDED + r"(?:-(?:4|7|8|11)|13[2569])\b"),
    ("crash", True, _RANK + r"(?:" + _EXCEPTIONS + r")Error(?:: |$)"),
    ("cancelled", True, r"\*\*\* (?:JOB|STEP) \S{1,40} ON \S{1,80} CANCELLED AT|this job is preempted"),
    ("cancelled", True, r"SignalException: Process \d{1,10} got signal: (?:1|2|15)\b|Received (?:1|2|15) death signal"),
    ("cancelled", True, r"Received SIGTERM: 15|closing signal SIGHUP|Timed out waiting for job step to complete"),
    ("cancelled", True, r"(?:^|[\]\\: ])Terminated ?$|Job not requeued because: timed-out"),
    ("limit", False, r"\[Errno 28\] No space left on device$"),
    # The status of a call or of a process, last since the lines above carry one too.
    ("killed", False, r"^Killed|srun: error: .{1,200}: Killed$|signal: Killed"),
    ("killed", False, _ENDED + r"(?:137|-9)\b|\b[Ss]ignal:? (?:9|SIGKILL)\b|: line \d{1,6}: {1,6}\d{1,10} Killed\b"),
    ("cuda", False, _FAILED_NCCL + r"unhandled cuda error|ncclUnhandledCudaError"),
    ("other", False, _FAILED_NCCL + r"(?:unhandled system|internal) error"),
    ("other", False, r"ncclSystemError|ncclInternalError"),
    ("usage", False, _FAILED_NCCL + r"invalid (?:argument|usage)|ncclInvalid(?:Argument|Usage)"),
    ("remote", False, _FAILED_NCCL + r"remote process exited|ncclRemoteError"),
    ("timeout", False, _FAILED_NCCL + r"\btimeout\b|operations have failed or timed out"),
)  # fmt: skip

TORCH = tuple((category, certain, re.compile(rule)) for category, certain, rule in _TORCH)
"""Category, whether the text names the cause, and the text of a message of torch, Python or a launcher."""

_LOGGER = r"(?:\([^)]{1,80}\) )?(?:ERROR [\d-]{5,10} [\d:]{8} (?:\S{1,80}\]|\[\S{1,80}\]) )?"
"""Prefixes of vLLM and Ray before each line of a worker."""
_SIGNS: tuple[tuple[Category, str], ...] = (
    ("socket", r"(?i)failed to connect\b(?!.{0,200}errno: 97)|\(gai error: -?\d|C10d store has failed"),
    ("socket", r"(?i)connection (?:refused|timed out)|no route to host|complete a TCP connection|not resolve host"),
    ("remote", r"(?i)connection reset|lost (?:communication|connection) (?:with|to)"),
    ("timeout", r"(?i)waitForInput, poolFD failed|\btime(?:d |-)?out (?:after|while|waiting)|\w time-?out(?:$|,| \()"),
    ("cancelled", r"\bKeyboardInterrupt\b|\b(?:Evicted|Preempted|DeadlineExceeded)\b"),
    # How a process ended, an exception, or its stack, in whatever program.
    ("crash", _ENDED + r"-?[1-9]|non-zero (?:exit )?(?:code|status)"),
    ("crash", r"\bSIG(?:ABRT|TERM|INT|HUP|QUIT)\b|\bcore dumped\b|(?:received|failure|fatal) signal\b"),
    ("crash", r"(?i)(?<![\w./-])(?:mpi_abort|abort(?:ed|ing)|crashed|died|killed|terminated)(?![\w=/]|\s?[=:]\s?\d)"),
    ("crash", r"\bterminate called |Traceback|Root Cause \(first observed|ChildFailedError|Actor(?:Died)?Error"),
    ("crash", _RANK + _LOGGER + r"(?:\w{1,40}\.){0,8}\w{0,40}(?:Error|Exception):?(?: (?!raised from|rate\b)|$)"),
    ("crash", r"\b(?i:container|pod|process|worker|rank|task|job|node)\b.{0,60} failed\b"),
    ("other", r"During handling of the above exception|the direct cause of the following exception"),
    ("other", r"Exception raised from |\bframe #\d{1,3}: |(?i:\b(?:call stacks?|stack ?trace|backtrace)\b)"),
    ("other", r"\[[EF]\d{3,4} \d\d:\d\d:\d\d|^[EF]\d{4} \d\d:|\d\d:\d\d:\d\d\.\d{6}: [EF] "),
    ("other", r"(?:^|[\s\[(|:])(?:ERROR|FATAL|CRITICAL|FAILED|Fatal|panic)(?:$|[\s\]):,|!])"),
)  # fmt: skip

SIGNS = tuple((category, False, re.compile(rule)) for category, rule in _SIGNS)
"""Signs that a job ended or never began, without the reason; programs also write them where they go on, so they are
asked only of a whole log that reports nothing else."""

_STEMS = (
    "error", "fail", "abort", "kill", "exception", "traceback", "fatal", "panic", "timeout", "timed out", "signal",
    "exit", "crash", "died", "dead", "terminat", "segmentation", "refused", "denied", "unreachable", "cancel", "dumped",
    "lost", "assert", "broken", "unable", "cannot", "could not", "invalid", "corrupt", "hang", "hung", "stuck", "stall",
    "interrupt", "evict", "preempt", "trace", "frame #", "unhandled", "unexpected", "disconnect", "mismatch", "illegal",
    "fault", "exceeded", "couldn't", "not found", "no such", "not responding", "unavailable",
)  # fmt: skip
"""With what words of failing and ending begin."""
DOUBTS = {
    stem: re.compile(
        r"(?<![\w/=.-])(?<!\b0 )(?<!\bno )(?<!\bNo )(?<!without )(?:[A-Z]\w{0,40})?(?i:" + stem + r")[A-Za-z]*"
        r"(?![\w=(/]|\.\w| ?(?:with )?(?:exit )?(?:code|status):? 0\b|"
        r"s?(?:\s?\(\w{1,8}\))?\)?\s?[:=]\s?(?:\d|None|null|[Ff]alse|[Tt]rue))"
    )
    for stem in _STEMS
}
"""Such a word that is not part of a name, the name of a setting, or counted as none; by its stem."""
WAITING = re.compile(
    r"No available node types can fulfill|[Ww]aiting for (?:creating a )?placement group|Insufficient nvidia\.com/gpu|"
    r"cannot be scheduled right now|job \d{1,12} queued and waiting for resources|Requested nodes are busy|"
    r"is waiting to start: (?:PodInitializing|ContainerCreating)|"
    r"\b\d{1,6}/\d{1,6} nodes are available|Allocate failed due to requested number of devices unavailable"
)
"""Messages of launchers while a job waits for resources; later work cancels them."""
FAILED_CALL = re.compile(r"\.cc?:\d{1,5} -> [1-689]\b")
"""NCCL's line about a failed call, at the level INFO."""
CALM = re.compile(
    r"(?:^|[\s\[(|:])(?:INFO|DEBUG|TRACE|NOTICE|WARN(?:ING)?|Warning|info|debug|warning)(?:$|[\s\]):,|])|"
    r"\b[A-Z]\w{1,40}Warning: |(?:^|\[)[DIW]\d{3,4} \d\d:|^\[[DIW] |[:\d] [DIW] |\blevel=(?:info|debug|warn)"
)
"""Lines that the program itself marks, by their level, as no error."""
WORK = re.compile(
    r"(?i)(?<!\w)(?:step|epoch|iter(?:ation)?|batch|episode|round|update)\b\W{1,8}[1-9](?!\d{0,8}\()|"
    r"\bloss\b\W{1,4}\d|\d ?(?:it/s|s/it|tok(?:en)?s?/s|samples/s)|samples/?(?:per)?sec\W{1,4}\d|\d (?-i:GB/s)|"
    r"throughput(?: \([^)]{1,24}\))?\W{1,8}\d{0,8}\.?\d{0,4}[1-9]|"
    r"\b\d{1,16} {1,20}\d{1,16} {1,20}\w{3,16} {1,20}(?:sum|none|prod|min|max|avg)\b|\" 20\d\b"
)
"""Lines that only a working job writes: progress beyond its beginning, or a result."""
BEGINS = re.compile(r"(?i)load|\| {0,8}0/")
"""Texts that such a line must not contain."""
ENDED_WELL = re.compile(
    r"(?i)\b(?:train\w{0,5}|job|run|benchmark)s?\b.{0,60}\b(?:finished|completed?|succeeded|done)\b|values : 0 OK|"
    r"(?:finished|completed?) successfully|Avg bus bandwidth|`max_(?:steps|epochs)=|train_runtime|"
    + _ENDED
    + r"0\b(?![.:]\d)"
)
"""Texts that show that a job has ended well."""
HARMLESS = re.compile(
    r"Failed to open libibverbs|Failed to find CUDA library|Could not find ncclGetVersion symbol|"
    r"event ?: (?:port active|client reregistration)|unknown event type \((?:9|17)\)|"
    r"Cannot get incoming CPU|Maximum retry reached for (?:accept|connect)|"
    r"SHARP coll init error|Cannot initialize CollNet, using point-to-point|"
    r"\balgbw {1,8}busbw {1,8}error\b|"
    r"NET/OFI pciPath: Could not find real path|Error opening file: /sys/devices/virtual/dmi|"
    r"On normal program exit, the application should call destroy_process_group"
)
"""Warnings that NCCL, its plugins and torch write where nothing is wrong, such as on a node without the hardware; and
the header of a table."""

VAGUE = re.compile(r"(?:Cuda|CUDA|HIP) failure (?:80[01] )?'operation not (?:permitted|supported)'")
"""CUDA's error for many causes, of which another warning names one."""

HINTS: tuple[bytes, ...] = (
    b"NCCL WARN ", b"NCCL error", b"NCCL Error", b"NCCL failure", b"ncclUnhandledCudaError", b"ncclSystemError",
    b"ncclInternalError", b"ncclInvalid", b"ncclRemoteError", b"NCCL work", b"NCCL operation", b"NCCL communicator",
    b"CUDA error", b"HIP error", b"cuda runtime error", b"Triton Error", b"CUDA_ERROR", b"CUDA driver error",
    b"ut of memory", b"utOfMemoryError", b"oom", b"OUT_OF_MEMORY", b"OOM", b"Out Of Memory", b"memory pressure",
    b"low on memory", b"Xid ", b"fallen off the bus", b"device handle for GPU", b"amdgpu", b"infiniband ",
    b"modify QP", b"libfabric:", b"NET/OFI", b"include/socket.h:", b"Duplicate GPU", b"ncclSocketInit",
    b"Last error:", b"Last NCCL warning", b"atchdog", b"imeout", b"imed out", b"DistStoreError",
    b"monitoredBarrier", b"should dump", b"failed on SocketImpl", b"store->get(", b"taking the entire process down",
    b"gloo/transport/", b"connectFullMesh", b"server socket", b"ddress already in use", b"marked dead",
    b"node has died", b"is dead or", b"NodeDied", b"Horovod has been shut", b"async NCCL error", b"got completion",
    b"eartbeat timeout", b"Detected mismatch", b"DDP expects", b"ataLoader", b"us error", b"segfault at ", b"ignal",
    b"eceived SIG", b"egmentation fault", b"llegal instr", b"loating point", b"Killed", b"xit code", b"xit_code",
    b"xitCode", b"xitcode", b"xit status", b"xited ", b"return code", b"errorcode", b"job memory limit",
    b"ot yet init", b"nitialize NVML", b"CUDA GPUs are", b"no NVIDIA driver", b"system is too old",
    b"undefined symbol: ", b"cannot open shared", b"Too many open", b"stub library",
    b"DNN_STATUS_", b"BLAS_STATUS_", b"custom_all_reduce.cuh",
    b"Errno 28", b"quota exceeded", b"ssh: ", b"Host key ver", b"ermission denied (", b"requested than perm",
    b"node configuration is", b"start new thread", b"emporarily unav", b"failed: EAGAIN", b"Bus Error: sev", b"AER: ",
    b"SXid (", b"mlx5_core ", b"bnxt_en ", b"ena 0", b"RmInitAdapter", b"access fault", b"peer access", b"HSA_",
    b"retry count", b"ode failure", b"NODE FAILURE", b"DEADLINE_EXCEEDED", b"CANCELLED", b"preempted", b"SIGTERM: 15",
    b"Terminated", b"SignalException", b"Error: ", b"Error\n", b"for CUDA runtime", b"cuda driver comb",
    b"ompatibility was att", b"kernel image is", b"PTX was", b"CUDA-capable", b"uncorrectable ", b"RESET_REQUIRED",
    b"of ancdata", b"Job credential", b"low on resource", b"MemoryPressure", b"shared memory", b"via ssh",
    b"Command 'ssh", b"ibv_", b"requeued because", b"API mismatch", b"nvml", b"container-cli: ", b"device driver",
    b"evice ordinal", b"egal memory acc", b"side assert", b"aunch failure", b"isaligned addr", b"CUDA failure",
    b"device function",
)  # fmt: skip
"""Each meaningful line contains one of these; they are found much faster than the rules."""

GOES_ON: Mapping[bytes, int] = {
    b"Last error:": 1, b"Root Cause": 7, b"ActorDied": 7, b"ActorError": 7, b"lost communication": 4,
    b"a TCP connection": 3,
}  # fmt: skip
"""By hint, the number of lines after its own that belong to the message."""

SIGN_HINTS: tuple[bytes, ...] = (
    *GOES_ON,
    *(hint.encode() for stem in _STEMS for hint in (stem[1:], stem[1:].upper())),
    b"poolFD", b"can fulfill", b"lacement group", b"nvidia.com/gpu", b"be scheduled", b"for resources", b"C10d store",
    b"nodes are ", b"waiting to start",
    b"SIG", b"all stack", b"all Stack", b"[E", b"[F", b": E ", b": F ", b".cc:",
)  # fmt: skip
"""So for signs and doubts, beside the others."""

CONTEXT: tuple[tuple[str, str, Category], ...] = (
    ("transport/nvls.cc", "uda failure", "nvls"),
    ("transport/multicast.cc", "uda failure", "nvls"),
    ("transport/p2p.cc", "invalid device ordinal", "p2p"),
    ("misc/shmutils.cc", "No such file or directory", "shm_gone"),
)
"""Source file and text of warnings that mean something else there, and their category."""
