"""Meanings of lines of a job's log that are more specific than their category: the cause in words, and the remedy.

Sources: the error strings of the CUDA runtime and driver API (``cudaGetErrorString``, ``cuda.h``), errno(3), the
messages of NVML, of glibc and of the kernel; Xids and SXids from data/xid.yaml and data/sxid.yaml, adapters from the
phrases that the daemon reads. The first row that fits counts; a line that no row fits has the words of its category.
"""

from __future__ import annotations

import re
from typing import Final

from commwatch.jobs.logs.categories import About, Category, Side
from commwatch.jobs.logs.messages import (
    LOCKED_MEMORY,
    LOST_GPU,
    MEMORY_LIMIT,
    MESSAGES_SAID,
    MPI_INTERFACE,
    NO_DRIVER,
    NO_NAME,
    NO_PLAN,
    NO_SERVER,
    SIGNS_SAID,
    Message,
)
from commwatch.node.xids import LINK_XIDS, meaning_of
from commwatch.readings import HardwareEvent
from commwatch.sources.adapter_lines import ADAPTER_EVENTS, DRIVERS
from commwatch.sources.kernel_log_lines import Report, is_fatal, parse_report


def _row(of: Category, says: str, about: About) -> Message:
    return Message(of, "", re.compile(says), about)


_SEES: Final = (
    "Compare what the process sees (nvidia-smi -L and CUDA_VISIBLE_DEVICES inside the job) with what it was given: "
    "the container's --gpus, Slurm's --gres, the limit nvidia.com/gpu of the pod."
)
_LOST: Final = (
    "Start the container again; if it happens after each systemctl daemon-reload, name the devices to the container "
    "with --device or use CDI (nvidia-ctk), and look at the kernel log for an Xid 79 or 119."
)
_MEMORY: Final = (
    "Drain the node; once it is free, run commwatch pause and reset the GPU, so that the row is remapped (nvidia-smi "
    "-q -d ROW_REMAPPER); look for Xid 48, 63, 64, 94 and 95 in the kernel log. Again on the same GPU: have the card "
    "inspected."
)
_COMPUTE: Final = (
    "Run the program with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer: it names the call. If only ever the same GPU "
    "fails, whatever runs on it, look for Xid 48, 94 and 95 and run field diagnostics."
)
_NODE_LOST: Final = About(
    "host", "Slurm lost a node of the job: it went down, or its slurmd did not answer.",
    "Ask Slurm why (scontrol show node NODE, sacct), and look at the node's console, power and kernel log; "
    "exclude it until then.",
)  # fmt: skip

FULL: Final = About(
    "config", "A file system is full, or its quota is used up.",
    "Look at df -h and df -i of the path, and at the quota; where none is named, /dev/shm and /tmp fill up first. Do "
    "not load a checkpoint that was cut.",
)  # fmt: skip
PORT_TAKEN: Final = About(
    "config", "The port at which a process should listen is taken.",
    "See who has it (ss -ltnp 'sport = :PORT'): a rest of an earlier job, or another job on the node; choose another "
    "MASTER_PORT for each job.",
)  # fmt: skip
_STATUS: Final = r"NCCL (?:error|Error|failure|operation \w)(?!.{0,300}\bfailure \d{0,4} ?').{0,300}"
"""A status of NCCL in a line that does not hold NCCL's warning too."""
_NO_WARNING: Final = About(
    "unknown", "A call of NCCL failed; the reason is in a warning of NCCL, which is not in this log.",
    "Run again with NCCL_DEBUG=WARN and read what NCCL writes before this line.",
)  # fmt: skip

CUDA_ROWS: Final[tuple[Message, ...]] = (
    # --- what is installed ---
    _row("version", r"driver version is insufficient for CUDA runtime|InsufficientDriver|driver on your system is too "
         r"old|CUDA error:? \(?35\b", About("config",
         "The NVIDIA driver of the node is older than the CUDA that the program was built with.",
         "Compare the CUDA version that nvidia-smi shows with that of the program (torch.version.cuda): update the "
         "driver, or install a build for the older CUDA.")),
    _row("version", r"not supported in the installed CUDA driver|CallRequiresNewerDriver", About("config",
         "The program calls something that the installed NVIDIA driver does not have yet.",
         "Update the driver, or install a build for an older CUDA.")),
    _row("version", r"unsupported display driver / cuda driver combination|SystemDriverMismatch|SYSTEM_DRIVER_MISMATCH",
         About("config", "The libcuda that the program loaded and the kernel's driver are of different versions.",
         "Look for a second libcuda.so.1 (ldconfig -p, LD_LIBRARY_PATH, cuda-compat in the image); after an upgrade of "
         "the driver reboot the node or load its modules again.")),
    _row("version", r"forward compatibility was attempted on non supported HW|CompatNotSupportedOnDevice", About(
         "config", "The image brings a libcuda for forward compatibility, which this GPU or driver does not support.",
         "Remove cuda-compat from the image or from LD_LIBRARY_PATH, or update the driver; GeForce cards have no "
         "forward compatibility.")),
    _row("version", r"(?i)no kernel image is available|NoKernelImage|NO_BINARY_FOR_GPU|"
         r"is not compatible with the current PyTorch installation|device kernel image is invalid", About("config",
         "The program or one of its libraries was not built for this generation of GPU.",
         "Compare the GPU's compute capability (nvidia-smi --query-gpu=compute_cap) with torch.cuda.get_arch_list(), "
         "and install a build that has it; extensions have to be built again (TORCH_CUDA_ARCH_LIST).")),
    _row("cuda", r"named symbol not found", About("config",
         "CUDA did not find a function or a variable by its name in what was loaded.",
         "Look whether the library was built for this generation of GPU and goes with the driver: of NCCL use NVIDIA's "
         "own build, or build it with the GPU's compute capability in NVCC_GENCODE. If the program names its own "
         "kernels (CuPy, Triton), compare their names. In WSL or Docker Desktop: another driver.")),
    _row("version", r"(?i)PTX was compiled with an unsupported toolchain|UNSUPPORTED_PTX_VERSION|"
         r"PTX JIT compilation failed", About("config",
         "The driver is too old to compile the code (PTX) that the program brings.",
         "Update the driver, or install a build for the CUDA version that nvidia-smi shows.")),
    _row("version", r"(?i)driver is a stub library|StubLibrary|STUB_LIBRARY", About("config",
         "The program loaded the stub of libcuda, which is only there to link against.",
         "Take lib64/stubs out of LD_LIBRARY_PATH, and see that the container gets the driver's libraries.")),
    _row("version", r"(?i)Driver/library version mismatch|NVRM: API mismatch", About("config",
         "The driver's library and its kernel module are of different versions: the driver was upgraded under way, or "
         "the container brings a library of its own.",
         "Run nvidia-smi on the host. If it fails too, drain the node and reboot it, or unload and load the NVIDIA "
         "modules; if it works, take libnvidia-ml and libcuda out of the image or its LD_LIBRARY_PATH.")),
    _row("version", r"unsatisfied condition: (?:cuda|driver|brand|arch)", About("config",
         "The image asks for another driver or GPU than the node has; the line names the condition.",
         "Update the driver, or use an image for the CUDA version that nvidia-smi shows.")),
    _row("usage", r"could not select device driver", About("config",
         "The container engine cannot give GPUs to a container: the NVIDIA Container Toolkit is not installed or not "
         "set up.",
         "Install nvidia-container-toolkit, run nvidia-ctk runtime configure, and restart the engine.")),
    _row("version", r"undefined symbol: (?:nccl|cu|nv|__nv|_ZN?\d?c10|_ZN2at)", About("config",
         "Two libraries of different builds are loaded together: one lacks what the other calls.",
         "Compare where each comes from (ldd, pip list of torch and the nvidia-* packages), and install them from one "
         "build; LD_LIBRARY_PATH and LD_PRELOAD come before what the package brings.")),
    _row("version", r"lib(?:cudart|cublas|cudnn|nccl|cupti|nvrtc|nvJitLink|cuda|cufft|cusparse)\w{0,12}\.so[.\d]{0,12}"
         r".{0,20}cannot open shared object", About("config", "A library that the program needs is not installed.",
         "Install the package that has it in the version named, or put its folder into LD_LIBRARY_PATH; libcuda.so.1 "
         "comes with the driver, and into a container by its NVIDIA runtime.")),
    # --- which GPUs a process sees ---
    _row("usage", r"(?i)invalid device ordinal|InvalidDevice\b|INVALID_DEVICE\b", About("config",
         "A process asked for a GPU whose number it does not see: most often more ranks run on the node than GPUs are "
         "visible to them, or each sees its own GPU as number 0.", _SEES)),
    _row("cuda", r"(?i)no CUDA-capable device is detected|No CUDA GPUs are available|\bErrorNoDevice|"
         r"ERROR_NO_DEVICE|Found no NVIDIA driver", About("config",
         "The process sees no GPU: none was given to it, its container lost them, or the driver does not run.",
         f"{_SEES} If it saw them before, the container lost its devices: start it again.")),
    _row("cuda", r"(?i)CUDA-capable device\(?s?\)? (?:is/)?are busy or unavailable|DevicesUnavailable|"
         r"DEVICE_UNAVAILABLE", About("config",
         "The GPU was there and could not be used: it is in exclusive mode and taken, or it does not start.",
         "Look at nvidia-smi: Compute M. of the GPU (nvidia-smi -c DEFAULT allows several processes), processes that "
         "were left over, and MIG; without these look for an Xid of the GPU.")),
    _row("cuda", r"(?i)nvml[^:]{0,24}: Unknown Error",
         About("config", "The driver's library may not use the GPUs: most often a container that lost its access to "
               "their device files while it ran.", _LOST)),
    _row("cuda", r"(?i)nvml(?: error)?: (?:Driver Not Loaded|Insufficient Permissions)", NO_DRIVER),
    _row("cuda", r"(?i)nvml(?: error)?: GPU is lost", LOST_GPU),
    _row("cuda", r"NV_ERR_RESET_REQUIRED", About("gpu",
         "The driver refuses the GPU until it is reset.",
         "Drain the node; once it is free, run commwatch pause and reset the GPU, together with those that it shares "
         "NVLinks with (nvidia-smi --gpu-reset); look for the Xid that came before. Again on the same GPU: have the "
         "card inspected.")),
    # --- the fabric ---
    _row("nvls", r"(?i)system not yet initialized|SystemNotReady|SYSTEM_NOT_READY", About("nvlink",
         "CUDA does not start, because nobody has set up the NVSwitches: error 802.",
         "Start the fabric manager in the version of the driver (systemctl status nvidia-fabricmanager), and see in "
         "nvidia-smi -q that Fabric State is Completed; in a virtual machine ask the host's operator. No setting of "
         "NCCL helps.")),
    _row("nvls", r"(?i)uncorrectable NVLink error|NvlinkUncorrectable|NVLINK_UNCORRECTABLE", About("nvlink",
         "An NVLink of the GPU had an error that it could not correct.",
         "Look for Xid 74 or 144 to 150 and for SXids in the kernel log: they name the link. Drain the node, reset the "
         "GPUs of the node together; again on the same link: have card and baseboard inspected.")),
    # --- memory ---
    _row("cuda", r"(?i)uncorrectable ECC error|EccUncorrectable|ECC_UNCORRECTABLE", About("gpu",
         "Memory of the GPU held data that could not be corrected.", _MEMORY)),
    _row("cuda", r"(?:CUDNN|CUBLAS)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)", About("program",
         "cuBLAS or cuDNN could not start or run: most often the GPU had no memory left, or an earlier kernel failed.",
         "Look at the free memory of the GPU before the job (nvidia-smi), lower the batch, and run with "
         "CUDA_LAUNCH_BLOCKING=1, which names the first call that failed; compare cuDNN with what torch was built "
         "for.")),
    _row("cuda", r"CUDA error: initialization error", About("program",
         "CUDA could not start in a process: most often it was forked after its parent had started CUDA.",
         "Start workers with the method spawn, or use no CUDA before they are started. If nothing is forked, see "
         "whether any program can use the GPU (nvidia-smi), and look at MPS.")),
    _row("oom", r"CUBLAS_STATUS_ALLOC_FAILED", About("program",
         "A GPU had no memory left for cuBLAS.",
         "Lower batch or sequence length; look who else holds memory on that GPU.")),
    # --- the program ---
    _row("cuda", r"(?i)device-side assert|ERROR_ASSERT", About("program",
         "A check inside a kernel failed, most often an index out of its range (a label or token beyond the table).",
         "Run again with CUDA_LAUNCH_BLOCKING=1, or on the CPU: the error then names the call.")),
    _row("cuda", r"(?i)illegal memory access|unspecified launch failure|misaligned address|illegal instruction|"
         r"invalid program counter|ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|MISALIGNED|ILLEGAL_INSTRUCTION)", About(
         "program", "A kernel touched memory that it may not, or did something illegal: most often the program.",
         _COMPUTE)),
    _row("cuda", r"(?i)invalid (?:device function|configuration argument|resource handle|device pointer)|"
         r"too many resources requested", About("program",
         "A kernel was started with what the GPU does not take.",
         "Look at the call in the program, and whether its extensions were built for this GPU and this torch.")),
    _row("cuda", r"(?i)launch timed out|LAUNCH_TIMEOUT", About("config",
         "A kernel ran longer than the watchdog of a GPU with a display allows.",
         "Use a GPU without a display, or make the kernels shorter.")),
)  # fmt: skip

LIMIT_ROWS: Final[tuple[Message, ...]] = (
    _row("limit", r"Too many open files|\bEMFILE\b|\[Errno 24\]", About("config",
         "A process had as many files and sockets open as its limit allows.",
         "Raise the limit of open files: ulimit -n, LimitNOFILE of the unit, --ulimit nofile of the container; "
         "/proc/PID/limits shows it.")),
    _row("limit", r"(?i)(?:pthread_create|fork|clone|can't start new thread|cannot fork|thread creation)"
         r".{0,80}(?:Resource temporarily unavailable|failed)|can't start new thread|\[Errno 11\]", About("config",
         "A process could not start another process or thread: a limit of their number was reached.",
         "Raise the limit of processes: ulimit -u, TasksMax of the unit, --pids-limit of the container, pids.max of "
         "its cgroup.")),
    _row("limit", r"No space left on device|\[Errno 28\]|[Dd]isk quota exceeded|\[Errno 122\]", FULL),
    _row("limit", r"low on resource: ephemeral-stor", About("config",
         "The disk of the node was full, and Kubernetes ended the pod.",
         "Write checkpoints, caches and logs to a volume in place of the container's disk; kubectl describe node shows "
         "what is left.")),
    _row("limit", r"unable to open shared memory object", About("config",
         "torch could not open shared memory for a tensor: most often the process has as many files open as its limit "
         "allows, since each tensor that workers share holds one.",
         "Raise the limit of open files (ulimit -n), or call "
         "torch.multiprocessing.set_sharing_strategy('file_system'); see in df -h /dev/shm whether it is full.")),
    _row("limit", r"items of ancdata", About("config",
         "A process could not hand a file on to another one: it has as many open as its limit allows.",
         "Raise the limit of open files (ulimit -n), or call "
         "torch.multiprocessing.set_sharing_strategy('file_system').")),
    _row("ib_async", r"TX timeout", About("network",
         "An adapter of Mellanox does not send any more: its driver gave up waiting for a queue.",
         "Drain the node. Look in the kernel log for a soft lockup in mlx5 and for errors of health; reload the driver "
         "or restart the node, and compare driver and firmware with what the vendor supports.")),
    _row("unreachable", r"Job credential", About("config",
         "A node refused a step of Slurm, since the proof that it belongs to the job was too old.",
         "Compare the clocks of the nodes (chronyc tracking on each) and munge (munge -n | ssh NODE unmunge); slurmd "
         "that hangs on the node does the same.")),
    _row("unreachable", r"ssh: Could not resolve hostname", NO_NAME),
    _row("version", r"Invalid config blocking attribute value -2147483648", About("config",
         "The NCCL that was loaded is older than the one that the program was built for: two are installed.",
         "See which it loads (NCCL version in the log; ldd) and which are installed (pip list for nvidia-nccl-*, "
         "ldconfig -p, LD_LIBRARY_PATH), and remove the older one or its folder.")),
    _row("other", r"Could not find real path of /sys/class/pci_bus/", About("config",
         "NCCL did not find the GPU on a PCI bus in /sys, which it needed in old versions: the node is WSL or a "
         "virtual machine that shows none, or /sys is not there whole.",
         "Use a newer NCCL, which goes on without it (a newer torch brings it); in a container or sandbox, mount "
         "/sys.")),
    _row("other", rf"{NO_PLAN}|XML Import Channel", About("config",
         "NCCL could not make a plan of how the GPUs and adapters of the node are joined.",
         "Unset NCCL_GRAPH_FILE, also in /etc/nccl.conf and ~/.nccl.conf, and see that NCCL_TOPO_FILE is the one of "
         "this kind of node; without them use a newer NCCL, which knows more GPUs (torch or the image brings it).")),
    _row("usage", r"EADDRINUSE|[Aa]ddress already in use|errno: 98", PORT_TAKEN),
    _row("other", r"AMD-Vi: .{0,60}IO_PAGE_FAULT|DMAR: \[DMA \w", About("host",
         "The IOMMU of the node refused a transfer of a PCIe device; from a GPU it is most often one to another GPU "
         "(P2P).",
         "Start the kernel with iommu=pt, or turn the IOMMU off in the firmware of the board; in a virtual machine "
         "only its host can. NCCL_P2P_DISABLE=1 shows whether transfers between GPUs are why; if it persists, look at "
         "driver and firmware of the device that the line names.")),
    _row("other", r"btl: tcp: Match incoming connection .{0,200} failed", MPI_INTERFACE),
    _row("other", _STATUS + r"(?:internal error|unhandled system error|unknown result)", _NO_WARNING),
    _row("cuda", _STATUS + r"unhandled cuda error|^.{0,60}ncclUnhandledCudaError", About("unknown",
         "A call of CUDA failed in NCCL; which one and why is in a warning of NCCL, which is not in this log.",
         "Run again with NCCL_DEBUG=WARN: NCCL then writes the error of CUDA. The reason may be the GPU (look for an "
         "Xid), the driver, or the GPUs that each rank sees (CUDA_VISIBLE_DEVICES).")),
    _row("usage", _STATUS + r"invalid (?:argument|usage)|^.{0,60}ncclInvalid(?:Argument|Usage)", _NO_WARNING),
    _row("oom", r"oom[-_]kill event|OOMKilled|: Out Of Memory$", About("config",
         "The job or its container used all memory of the host that it was given, and was killed.", MEMORY_LIMIT)),
    _row("oom", r"(?:CUDA|HIP)(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY", About("program",
         "A GPU had no memory left.", "Lower batch or sequence length; look who else holds memory on that GPU.")),
    _row("oom", r"low on resource: memory|MemoryPressure", About("config",
         "The node ran out of memory, and Kubernetes ended the pod.",
         "Set the pod's request and limit of memory to what the job needs: pods that use more than their request are "
         "ended first. Or give it a larger node.")),
    _row("crash", r"its worker process has died|Worker exit type: SYSTEM_ERROR", About("unknown",
         "A worker process of Ray ended by itself or was killed; Ray does not know which.",
         "Look on the node that is named for oom-kill (memory of the node, or the limit of the pod: kubectl describe "
         "pod shows OOMKilled) and segfault in the kernel log, and in Ray's log of that process "
         "(/tmp/ray/session_latest/logs/worker-*-PID.err).")),
    _row("crash", r"ActorUnavailableError", About("unknown",
         "A process of Ray could not be reached; Ray does not know whether it ended.",
         "See whether it still runs (ray list actors). If not, look on its node for oom-kill in the kernel log and in "
         "/tmp/ray/session_latest/logs; if so, open Ray's ports between the nodes, and keep other programs off them "
         "(--min-worker-port, --max-worker-port).")),
    _row("remote", r"Node failure on \S", _NODE_LOST),
    _row("cancelled", r"DUE TO NODE FAILURE", _NODE_LOST),
    _row("timeout", r"failed to pass monitoredBarrier", About("symptom",
         "Some ranks never came to a barrier at which the others waited; the line names them.",
         "Look at the logs of the ranks that the line names: they ended before it, or hang.")),
    _row("usage", r"requested than permitted|node configuration is not available", About("config",
         "The job asks Slurm for more than its allocation or partition has.",
         "Compare its --nodes, --ntasks and --gres with scontrol show job and sinfo.")),
    _row("p2p", r"hipIpc", About("host",
         "Processes could not share the memory of an AMD GPU by handle (IPC), as happens in some containers.",
         "Use a newer RCCL, or NCCL_P2P_DISABLE=1, which goes through shared memory; in a container, also try "
         "--ipc=host (hostIPC of the pod).")),
    _row("p2p", r"custom_all_reduce", About("host",
         "The all-reduce of vLLM or SGLang itself, which does without NCCL, failed between the GPUs.",
         "Start with --disable-custom-all-reduce, which uses NCCL in its place; if that fails too, look at P2P between "
         "the GPUs (commwatch topology, nvidia-smi topo -p2p r).")),
    _row("usage", r"errno: 13 ", About("config",
         "A process may not listen at the port that it was given.",
         "Choose a MASTER_PORT above 1023, which needs no right of root.")),
    _row("crash", r"\bSIGBUS\b|[Bb]us error|exitcode: -7\b|\b[Ss]ignal:? 7\b", About("config",
         "A process died of SIGBUS: memory that it had mapped could not be had, most often because /dev/shm was full.",
         "Give the container more /dev/shm (docker --shm-size, an emptyDir of medium Memory); a file that was cut "
         "while it was mapped, or a file system that is full or lost, does the same.")),
    _row("crash", r"SIGSEGV|[Ss]egmentation fault|segfault at|exitcode: -11\b|\b[Ss]ignal:? 11\b", About("program",
         "A process died of a wrong access to memory (SIGSEGV), in the program or in a library.",
         "Look at the stack that it wrote, or at its core (coredumpctl gdb): try another version of the library of the "
         "topmost frame. PYTHONFAULTHANDLER=1 names the line of Python.")),
    _row("cancelled", r"waiting for job step to complete", About("symptom",
         "Slurm ended a step of the job, and its processes did not end in time; something had failed before, or the "
         "job was cancelled.",
         "Look at the lines of srun and slurmstepd before this one: they name the node or task. A process that still "
         "does not end hangs in the kernel (ps: state D).")),
    _row("teardown", r"[Hh]eartbeat monitor timed out|watchdog got stuck", About("symptom",
         "The watchdog of this process was stuck: a call of CUDA or NCCL did not return, or a thread held the GIL.",
         "Look for an earlier cause in the logs of all ranks; without one, at the stacks of this process the next time "
         "that it hangs (py-spy dump --native --pid PID), and for an Xid of its GPU.")),
    _row("cancelled", r"DUE TO TIME LIMIT|DeadlineExceeded|because: timed-out", About("symptom",
         "The job was ended because its time was over.",
         "Ask for more time or save checkpoints more often; if it hung before, earlier lines say so.")),
    _row("ib_setup", r"(?i)ibv_(?:reg_mr|create_cq|create_qp|reg_dmabuf)\w{0,12}.{0,80}Cannot allocate memory|memlock",
         LOCKED_MEMORY),
    _row("no_interface", r"family \d{1,10} is neither AF_INET", About("config",
         "NCCL received an address that makes no sense: something else spoke at its port, or two versions of NCCL "
         "talked to each other.",
         "Compare the versions of NCCL of all ranks (NCCL version in each log); look for a scanner or a health check "
         "that connects to the ports of jobs.")),
)  # fmt: skip

_LOOPBACK: Final = re.compile(
    r"(?:remote=\[|connect(?:ed)? to |to \[|to \()(?:::ffff:)?\[?(?:127\.\d|localhost\b|::1(?![\w:]))"
)
"""The own node as the other end of a connection, in messages of Gloo and torch."""
GLOO_LOOPBACK: Final = About("config",
    "Gloo did not find an address by the name of its node, and gave the other ranks the loopback address, which leads "
    "each of them to its own node. In a job on one node that is right: there most often another process had ended.",
    "On several nodes set GLOO_SOCKET_IFNAME to the interface between them (ip -br addr), or give each node's own name "
    "(hostname) its address in DNS or /etc/hosts. On one node look at the ranks that do not report it.",
)  # fmt: skip

_LISTENER_HERE: Final = (
    "In a job on one node: look whether the process that should listen there still runs and has started (rank 0 for "
    "MASTER_PORT). On several nodes the address is wrong: give MASTER_ADDR as one that all reach"
)

CONNECTION_ROWS: Final[tuple[Message, ...]] = (
    _row("socket", r"We couldn't connect to 'https?://", NO_SERVER),
    _row("socket", r"(?i)connect(?:ing|ion)? (?:to )?\[?fe80:", About("config",
         "A process called a link-local address of IPv6, which only its own link can reach: an interface was chosen "
         "that is not joined to the other nodes, such as a veth or a bridge.",
         "Name the interface between the nodes with NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME), or set "
         "NCCL_SOCKET_FAMILY=AF_INET; ip -br addr shows which address is whose.")),
    _row("socket", r"mca_btl_tcp_\w{1,60}\].{0,20}connect\(\)", MPI_INTERFACE),
    _row("socket", rf"(?i)^(?=.{{0,400}}(?:\berrno:? 111|refused)).{{0,400}}?{_LOOPBACK.pattern}", About("network",
         "Nobody listened at a port of the process's own node, whose loopback address it called.",
         f"{_LISTENER_HERE}, and for Gloo set GLOO_SOCKET_IFNAME, or give the name of each node its address in DNS or "
         "/etc/hosts.")),
    _row("socket", r"(?i)(?:\(errno: 111|\[Errno 111\]|errno 111|connection refused)", About("network",
         "Nobody listened at the address and port that a process called.",
         "Look whether the process that should listen there still runs and has started (rank 0 for MASTER_ADDR and "
         "MASTER_PORT), and whether the address is its own; commwatch cluster check tries the paths between nodes.")),
    _row("socket", r"(?i)(?:errno:? 113|\[Errno 113\]|no route to host)", About("network",
         "There is no way to the address that a process called: the host is down, or a firewall refuses it.",
         "Try it with ping and with commwatch cluster check; look at the firewall of the host and at "
         "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, which choose the interface.")),
    _row("socket", r"(?i)(?:errno:? 101|\[Errno 101\]|network is unreachable)", About("network",
         "The node has no route to the network of the address that a process called.",
         "Look at ip route get ADDRESS on the node, and at NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME: an interface "
         "that is not joined to the others was chosen.")),
    _row("socket", r"(?i)(?:gai error: -?\d|(?:could|can) ?not (?:be )?resolved?|not resolve host|"
         r"name or service not known|temporary failure in name resolution|nodename nor servname)", NO_NAME),
    _row("socket", r"(?i)(?:errno:? 110|\[Errno 110\]|connection timed out)", About("network",
         "The address that a process called did not answer: its host is down, a firewall drops the packets, or the "
         "path is broken.",
         "Open the ports between the nodes (MASTER_PORT and the range of ephemeral ports); commwatch cluster check "
         "tries the paths between nodes.")),
    _row("socket", rf"client socket has timed out .{{0,80}}?{_LOOPBACK.pattern}", About("network",
         "A port of the process's own node, whose loopback address it called, did not answer in time.",
         f"{_LISTENER_HERE}.")),
    _row("socket", r"client socket has timed out|timed out .{0,40}(?:trying|attempting) to connect", About("network",
         "The address and port that a process called did not answer in time.",
         "Look whether rank 0 has started there (MASTER_ADDR and MASTER_PORT), and whether the port is open between "
         "the nodes: commwatch cluster check tries the paths.")),
    _row("socket", r"C10d store has failed", About("network",
         "The process did not reach the store of torchrun's rendezvous.",
         "Look whether torchrun runs on the host of --rdzv_endpoint, whether all nodes name the same endpoint and "
         "--rdzv_id, and whether its port is open between the nodes: commwatch cluster check tries the paths.")),
)  # fmt: skip
"""Reasons of a failed connection, by the line itself."""
_CONNECTING: Final = frozenset({"socket", "timeout"})
"""Categories of lines that may contain the reason of a failed connection."""

_SIDES: Final[dict[str, Side]] = {
    "nvlink": "nvlink", "nvswitch": "nvlink", "pcie": "host", "gpu": "gpu", "memory": "gpu", "driver": "host",
    "application": "program",
}  # fmt: skip
"""By the component of an event of the kernel log."""
_KERNEL: Final = re.compile(
    rf"NVRM: Xid|nvidia-nvswitch\d{{1,3}}:? SXid|NVRM: .{{0,80}}(?:fallen off|RmInitAdapter)|\b(?:{'|'.join(DRIVERS)}) "
    r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:"
)
_LINK_XID: Final = re.compile(rf"(?:{LINK_XIDS})\Z")


def calls_loopback(text: str) -> bool:
    """Whether Gloo failed to connect to the own node of a process. The store of torch calls MASTER_ADDR instead."""
    return "loo" in text and _LOOPBACK.search(text) is not None


def report_in(line: str) -> Report | None:
    """The event of a GPU, an NVSwitch or an adapter that a line of the kernel reports, whatever text precedes it."""
    found = _KERNEL.search(line)
    return None if found is None else parse_report(line[found.start() :])


def category_of_report(report: Report) -> Category | None:
    """The category of an event of the kernel log; None for one that is no trouble of a job."""
    if report.kind == "adapter":
        return None if ADAPTER_EVENTS[report.code].gravity == "info" else "ib_async"
    if report.kind == "sxid":
        return "nvls" if is_fatal(report.kind, report.text) else None
    return "nvls" if report.kind == "xid" and _LINK_XID.match(report.code) else "cuda"


_OF_AMD: Final = re.compile(r"\bHIP (?:error|failure)|\bhip[A-Z]")
"""An error of AMD's runtime: the next steps of CUDA's do not hold."""


def refined(category: Category, text: str) -> Category:
    """The category of a failed call of CUDA by CUDA's own text; every other category unchanged."""
    if category != "cuda" or _OF_AMD.search(text) is not None:
        return category
    return next((row.of for row in CUDA_ROWS if row.says.search(text)), category)


def about_line(category: Category, text: str, of_amd: bool = False) -> About | None:
    """The cause that a line itself names; None if only its category is known.

    Args:
        of_amd: whether it is of AMD's GPUs, for which the next steps of CUDA's errors do not hold.
    """
    if (report := report_in(text)) is not None:
        return about_report(report)
    if category == "pcie" and (device := _PCI_ADDRESS.search(text)) is not None:
        return _about_pcie(device[0])
    found = _row_of(category, text, of_amd)
    return None if found is None else found[0].about


_PCI_ADDRESS: Final = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


def _about_pcie(address: str) -> About:
    return About(
        "host", f"The PCIe device {address}, or the path to it, reported an error that was not corrected.",
        f"See with lspci -tv what {address} is and what is below and above it. If it stays, drain the node; once it is "
        "free, power cycle it; if that does not help, call the vendor (PCIe card: reseat it first).",
    )  # fmt: skip


def shortened(category: Category, text: str, longest: int) -> str:
    """The beginning of a line, or the part that ends with the reason.

    Args:
        longest: characters that are kept.
    """
    found = None if len(text) <= longest else _row_of(category, text)
    if found is None or found[1] <= longest:
        return text[:longest]
    return f"…{text[found[1] - longest + 1 : found[1]]}"


def _row_of(category: Category, text: str, of_amd: bool = False) -> tuple[Message, int] | None:
    """The row that fits a line, and where in the line its words end."""
    of_cuda = () if of_amd or _OF_AMD.search(text) is not None else CUDA_ROWS
    every = (*MESSAGES_SAID, *SIGNS_SAID, *of_cuda, *LIMIT_ROWS)
    rows = [row for row in every if row.of == category]
    for row in (*rows, *(CONNECTION_ROWS if category in _CONNECTING else ())):
        if (found := row.says.search(text)) is not None:
            return row, found.end()
    return None


def name_of_report(report: Report) -> str:
    """A few words for an event: ``Xid 74 of 0000:1b:00.0``."""
    if report.kind == "adapter":
        return f"adapter {report.device}: {ADAPTER_EVENTS[report.code].meaning}"
    what = {"xid": f"Xid {report.code}", "sxid": f"SXid {report.code}"}.get(report.kind, report.code.replace("_", " "))
    return f"{what} of {report.device}" if report.device else what


def about_report(report: Report) -> About:
    """The meaning of an event of the kernel log, by the tables of the daemon."""
    if report.kind == "adapter":
        happened = f"Adapter {report.device}: {ADAPTER_EVENTS[report.code].meaning}."
        return About("network", happened, _ADAPTER)
    known = meaning_of(HardwareEvent(report.kind, report.device, report.code, "kernel_log", 0.0, report.text))
    name = name_of_report(report) + (", which the driver calls fatal" if is_fatal(report.kind, report.text) else "")
    if known is None:
        side: Side = "nvlink" if report.kind == "sxid" else "gpu"
        part = "an NVSwitch" if report.kind == "sxid" else "a GPU"
        return About(side, f"{name}: an error of {part} whose number commwatch does not know.", _UNKNOWN_NUMBER)
    return About(_SIDES[known.component], f"{name}, {known.name}: {known.meaning}", known.advice)


_ADAPTER: Final = (
    "Look at the kernel log around this line and at the adapter's ports (rdma link, devlink health); firmware that "
    "failed needs a reset of the adapter or a power cycle of the node, again and again a new adapter."
)
_UNKNOWN_NUMBER: Final = (
    "Read the lines around it; look the number up in the list of NVIDIA for this driver. If it is fatal, drain the "
    "node and reset its GPUs together."
)
