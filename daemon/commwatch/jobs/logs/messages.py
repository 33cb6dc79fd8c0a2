"""Messages of programs, launchers and the kernel that name their cause: category, text, meaning and next step in a row.

Sources: the messages of torch, Ray, vLLM, Open MPI, Slurm, Kubernetes, UCX and Linux as they write them. ``hint`` is a
part of the line by which lines are found before any pattern is tried.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from commwatch.jobs.logs.categories import AMD, About, Category


class Message(NamedTuple):
    """A message, and what it means."""

    of: Category
    """The category that the line gets."""
    hint: str
    """A part of the line; empty in tables for lines that were found by another one."""
    says: re.Pattern[str]
    about: About


def _message(of: Category, hint: str, says: str, about: About) -> Message:
    return Message(of, hint, re.compile(says), about)


NO_PLAN: Final = (
    r"Could not find [A-Z]{3} with id [\da-f]|Failed to find reverse path from rem|"
    r"\bring \d{1,4} does not (?:loop back to start|contain rank)"
)
"""NCCL could not join GPUs and adapters; kinds of its topology have three capitals."""

MEMORY_LIMIT: Final = (
    "Raise the limit (limits.memory of the pod, --mem of Slurm, --memory of the container), or lower what the job "
    "holds in memory of the host: workers of data loaders, offloading, /dev/shm, which counts too."
)
_HOST_MEMORY: Final = About("program", "A process got no more memory of the host.",
    "Compare free -g and the job's limit (memory.max of its cgroup) with what it needs; lower workers of data loaders, "
    "offloading and batch size, and look who else holds memory on the node.")  # fmt: skip
_NO_CACHE: Final = About("program", "The GPU has no room for the cache of keys and values beside the model.",
    "See in nvidia-smi who else holds memory on the GPU; raise gpu_memory_utilization, lower max_model_len, or use "
    "more GPUs per model.")  # fmt: skip
_NO_THREADS: Final = About("config", "A process could not start a thread: a limit of processes was reached.",
    "Raise the limit of processes: ulimit -u, TasksMax of the unit, --pids-limit of the container, pids.max of its "
    "cgroup.")  # fmt: skip
LOST_GPU: Final = About("gpu", "The driver does not reach a GPU any more.",
    "Look for Xid 79 or another Xid of that GPU in the kernel log. Drain the node; once it is free, power cycle "
    "it; if the GPU is lost again, have GPU, slot and power inspected.")  # fmt: skip
_STORAGE: Final = About("host",
    "The file system failed under the job: its disk, or the server that it is mounted from.",
    "Look at the kernel log of the node (nfs, Lustre, nvme, I/O error) and at the mount (df, mount); the job can go on "
    "from its last checkpoint when it is back.")  # fmt: skip
NO_DRIVER: Final = About("config", "The NVIDIA driver is not loaded, or the process may not use it.",
    "Run nvidia-smi on the host; compare the rights of /dev/nvidia* with the user of the job.")  # fmt: skip
LOCKED_MEMORY: Final = About("config", "The adapter could not lock memory: the limit of locked memory is too small.",
    "Raise it: ulimit -l unlimited, LimitMEMLOCK=infinity of the unit (of Slurm's or of containerd, which jobs inherit "
    "it from), --ulimit memlock=-1 of the container.")  # fmt: skip
NO_SERVER: Final = About("config",
    "The program could not reach a server outside, from which it loads a model or data.",
    "Look at DNS, proxy (HTTPS_PROXY) and route of the node; or load the files beforehand and set HF_HUB_OFFLINE=1.",
)  # fmt: skip
_NO_REGISTRATION: Final = About("config",
    "An RDMA adapter could not register the memory that it should send or receive, most often memory of a GPU.",
    "Load nvidia_peermem (modprobe nvidia_peermem; lsmod shows it), or use a build that registers by DMA-BUF; take "
    "expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF. If it is memory of the host: it was freed, or is a file "
    "whose file system cannot be registered.")  # fmt: skip
_NVSHMEM: Final = About("config", "NVSHMEM found no way between the GPUs: no P2P, and no transport over the network.",
    "Read its lines before this one. Where neither nv_peer_mem nor nvidia_peermem was detected: modprobe "
    "nvidia_peermem on each node, or a newer NVSHMEM, which finds it in other places. On EFA: "
    "NVSHMEM_REMOTE_TRANSPORT=libfabric. On one node: nvidia-smi topo -p2p r shows which GPUs reach each other.",
)  # fmt: skip
_UCX: Final = About("config", "UCX has no transport that carries this kind of memory between the two processes.",
    "Look at UCX_TLS and UCX_NET_DEVICES of both, also at what the image or the program sets: memory of a GPU needs "
    "cuda_copy and cuda_ipc, between nodes also RDMA (ucx_info -d shows what there is). Without such a setting: "
    "compare the versions (ucx_info -v, built with CUDA), and try a newer UCX.")  # fmt: skip
NO_NAME: Final = About("config", "The name of a host could not be resolved.",
    "Try getent hosts NAME on the node that reports it; put the name into DNS or /etc/hosts of all nodes, or give "
    "MASTER_ADDR as an address. A pod's name is known once the pod and its service run.")  # fmt: skip
_NOT_REACHED: Final = (
    "(?:Socket timed out|Unable to contact|Transport endpoint is not|Zero Bytes|Connection |No route|"
    "Communication connection|Protocol authentication|Invalid job credential|Can't find an address)"
)
"""Errors of Slurm where its daemons did not reach, or did not accept, each other."""
MPI_INTERFACE: Final = About("network",
    "Open MPI did not reach an address that another process of the job had given as its own.",
    "See whose address it is (ip -br addr on the other node). One that is not joined to this node, such as that of "
    "Docker or of a bridge, has to be left out: mpirun --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0. "
    "Is it the right one: look whether that process ended first, and at the firewall.")  # fmt: skip
_PATH: Final = (
    "Look on the node that reports it whether the path is there (a file system that is mounted on all nodes) and may "
    "be executed."
)

MESSAGES_SAID: Final[tuple[Message, ...]] = (
    # --- memory of the host ---
    _message("oom", "roup out of memory", r"[Cc]group out of memory: Kill|CONSTRAINT_MEMCG", About("config",
             "The kernel killed a process: its container or job had used all memory of its limit.", MEMORY_LIMIT)),
    _message("oom", "memory limit", r"Exceeded (?:step|job) memory limit", About("config",
             "Slurm saw the job use more memory than it was given.", MEMORY_LIMIT)),
    _message("oom", "ut of memory: Kill", r"\bOut of memory: Kill", About("config",
             "The kernel killed a process, since the node had no memory left.",
             "See in the kernel log which process held most; lower workers of data loaders and offloading, or give the "
             "job a larger node, with a limit of memory so that it does not harm others.")),
    _message("oom", "RESOURCE_EXHAUSTED", r"RESOURCE_EXHAUSTED: .{0,60}(?i:out of memory|allocat)", About("program",
             "A GPU had no memory left.",
             "Lower batch or sequence length or XLA_PYTHON_CLIENT_MEM_FRACTION; look who else holds memory on that "
             "GPU.")),
    _message("oom", "llocate memory", r"\[Errno 12\] Cannot allocate memory|CPUAllocator: (?:can't|not enough)",
             _HOST_MEMORY),
    _message("oom", "bad_alloc", r"std::bad_alloc", _HOST_MEMORY),
    _message("oom", "emoryError", r"(?:^|[ .])(?:MemoryError$|_?ArrayMemoryError:)", _HOST_MEMORY),
    _message("oom", "cache blocks", r"No available memory for the cache blocks", _NO_CACHE),
    _message("oom", "ory on device", r"Free memory on device .{0,80} is less than desired GPU memory", _NO_CACHE),
    _message("oom", "memory usage thre", r"exceeds the memory usage threshold", About("config",
             "Ray ended a worker, since the node ran out of memory.",
             "Ask for more CPUs or memory per task, so that fewer run at a time, or give the node more memory; "
             "RAY_memory_usage_threshold sets the share.")),
    _message("oom", "ObjectStoreFull", r"ObjectStoreFullError", About("config",
             "Ray's object store, which lies in shared memory, is full.",
             "Raise --object-store-memory and /dev/shm of the container, or keep fewer objects alive.")),
    # --- limits and file systems ---
    _message("limit", "treamWriter failed", r"PytorchStreamWriter failed writing", About("config",
             "A checkpoint could not be written: the file system is full, its quota is used up, or it failed.",
             "Look at df -h, df -i and the quota of the path, and at the kernel log for errors of the mount. Do not "
             "load the checkpoint that was cut.")),
    _message("limit", "hread creation failed", r"Thread creation failed", _NO_THREADS),
    _message("limit", "new OS thread", r"failed to create new OS thread", _NO_THREADS),
    _message("limit", "% full, available", r"is over \d{1,3}% full, available space", About("config",
             "The disk under Ray's folder for temporary files is full.",
             "Free space there, or start Ray with --temp-dir and a spilling directory on a larger disk.")),
    _message("other", "Error: [Errno ", r"\[Errno (?:5|30|116)\]", _STORAGE),
    _message("ib_setup", "llocate memory", r"(?i)(?:register(?:ing)? memory|mr_reg\w{0,12}|reg_mr\w{0,12}).{0,120}"
             r"Cannot allocate memory", LOCKED_MEMORY),
    _message("ib_setup", "Bad address", r"(?i)(?:register memory 0x|reg_mr).{0,200}Bad address", _NO_REGISTRATION),
    _message("ib_setup", "not accessible, exi", r"\] Peer GPU \d{1,6} is not accessible, exiting", _NVSHMEM),
    _message("ib_setup", "initialize any tra", r"Unable to initialize any transports", _NVSHMEM),
    _message("ib_setup", "remote protocol for", r"cannot find remote protocol for: ", _UCX),
    _message("ib_setup", "lane for local dev", r"failed to select lane for local device", _UCX),
    _message("ib_remote_access", "RMA address ver", r"RMA address verification failed", About("peer",
             "The other end of a transfer over EFA refused its address or key: no memory is registered there for it.",
             "Look at the program or plugin that registers the memory of the other end: it was freed, or registered "
             "again, or the key does not reach this end whole. Try a newer version of it and of libfabric.")),
    _message("version", "load NCCL library", r"Unable to load NCCL library", About("config",
             "The program did not find NCCL (libnccl.so.2), or could not load it.",
             "Install it in the environment of the job (pip install nvidia-nccl-cuNN, or the distribution's libnccl2), "
             "and see with ldconfig -p and LD_LIBRARY_PATH which one the program gets.")),
    _message("ib_setup", "mlx5_cmd_", r"mlx5_cmd_\w{1,12}.{0,120}status (?:limits exceeded|no resources)", About(
             "host", "The adapter refused to make another object for a process (a memory key, a queue): all that its "
             "firmware has are taken.",
             "End processes that were left over (rdma resource show), and register less memory or use fewer queues per "
             "job; the firmware's limits are in mlxconfig.")),
    # --- what is installed, and which GPUs are there ---
    _message("cuda", "with the NVIDIA driver", r"couldn't communicate with the NVIDIA driver", NO_DRIVER),
    _message("cuda", "CUDA unknown error", r"CUDA unknown error", About("config",
             "CUDA could not start: a device file is missing, or the driver was left in a bad state.",
             "Run nvidia-smi and nvidia-modprobe -u on the host, and give the container all of /dev/nvidia* with "
             "nvidia-uvm; after a sleep or an upgrade of the driver load its modules again.")),
    _message("cuda", "device handle for GPU", r"device handle for GPU.{0,80}(?:GPU is lost|Unknown Error)", LOST_GPU),
    _message("cuda", "nvidia: probe", r"\bnvidia: probe of \S{1,20} failed", About("gpu",
             "The driver could not start a GPU.",
             "Read the lines of NVRM before this one; drain the node; once it is free, power cycle it; if it stays so, "
             "have GPU, slot and power inspected.")),
    _message("version", "ompiled with CUDA", r"not compiled with CUDA enabled", About("config",
             "torch was installed in a build without CUDA.",
             "Install the build for the CUDA version of the driver (nvidia-smi shows it): pip install torch "
             "--index-url https://download.pytorch.org/whl/cuNNN.")),
    _message("cuda", "cuda.is_available() is False", r"cuda\.is_available\(\) is False", About("config",
             "The process sees no GPU, or torch was installed without CUDA.",
             "Compare nvidia-smi -L inside the job with what it was given, and look at torch.version.cuda: None is a "
             "build without CUDA.")),
    _message("cuda", "supported devices fo", r"no supported devices found for platform CUDA", About("config",
             "XLA could start none of the GPUs: the process sees none, or their memory was taken.",
             "Compare nvidia-smi -L and CUDA_VISIBLE_DEVICES in each task with what Slurm gave it (--gpus-per-task and "
             "--gpu-bind; jax.distributed takes local_device_ids), and look in nvidia-smi who holds their memory "
             "(XLA_PYTHON_CLIENT_PREALLOCATE=false lets processes share it).")),
    _message("usage", "in forked subprocess", r"Cannot re-initialize CUDA in forked subprocess", About("program",
             "A process was forked after CUDA had started in its parent.",
             "Start workers with the method spawn (multiprocessing.set_start_method, VLLM_WORKER_MULTIPROC_METHOD), or "
             "use no CUDA before they are started.")),
    _message("version", "GLIBC", r"version `GLIBC(?:XX)?_[\d.]{1,8}' not found", About("config",
             "A library was built for a newer system than this one.",
             "Use an image with the newer system, or a build of the library for this one.")),
    _message("version", "code object for", r"Unable to find code object for all current devices|NoBinaryForGpu", About(
             "config", "The program was not built for this generation of AMD's GPUs.",
             "Compare rocminfo (gfx...) with what the build has; HSA_OVERRIDE_GFX_VERSION helps only between near "
             "relatives.")),
    _message("cuda", "No HIP GPUs", r"No HIP GPUs are available", About("config", "The process sees no GPU.",
             "Compare rocminfo and HIP_VISIBLE_DEVICES inside the job with what it was given; the container needs "
             "/dev/kfd and /dev/dri, and the user the groups video and render.")),
    _message("cuda", "HSA_STATUS_ERROR_OUT", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES", About("program",
             "The runtime of AMD got no more memory or queues, on the GPU or on the host.",
             "Look at the memory of GPU and host before it (rocm-smi --showmeminfo vram, free -g), at processes that "
             "were left over, and at amdgpu in the kernel log.")),
    _message("cuda", "HSA_STATUS_ERROR", r"HSA_STATUS_ERROR_[A-Z]", AMD),
    _message("cuda", "access fault by GPU", r"Memory access fault by GPU", AMD),
    _message("cuda", "amdgpu", r"amdgpu.{0,80}(?:\bring \S{1,40} timeout, signaled|device lost from bus)", About("gpu",
             "A GPU of AMD hung, or is gone from the bus.",
             "Look at the kernel log around it (GPU reset, RAS) for whether its reset succeeded; again on the same "
             "GPU: rocm-smi --showrasinfo, and have the card inspected.")),
    _message("cuda", "memory access was enc", r"(?<!HIP error: )an illegal memory access was enc", About(
             "program", "A kernel touched memory that it may not: most often the program.",
             "Run the program with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer: it names the call.")),
    _message("nvls", "abricmanager", r"query NVSwitch device information .{0,60}failed", About("nvlink",
             "The fabric manager found no NVSwitch that it may set up.",
             "On a node without NVSwitches (nvidia-smi topo -m) disable the service. With them: the driver or the "
             "virtual machine does not show them; on B200 and newer load mlx5_ib and ib_umad, and run NVLSM.")),
    _message("nvls", "driver interface ver", r"driver interface version \S{1,24} don't match with driver", About(
             "config", "The fabric manager is of another version than the NVIDIA driver, and does not start.",
             "Install nvidia-fabricmanager in exactly the version of the driver that is loaded "
             "(/proc/driver/nvidia/version); if the driver was upgraded since the node started, reboot it.")),
    _message("other", "EDAC ", r"\bEDAC \S{1,12}: .{0,12}\bUE\b", About("host",
             "Memory of the host held data that could not be corrected.",
             "Drain the node and have the module replaced that the line names (DIMM); see ras-mc-ctl --errors.")),
    _message("other", "ardware Error]", r"\[Hardware Error\]: .{0,80}Machine [Cc]heck", About("host",
             "The processor reported a hardware error (machine check).",
             "Drain the node; decode it with rasdaemon (ras-mc-ctl --errors) or mcelog, and look at the events of its "
             "management controller.")),
    # --- launchers ---
    _message("usage", "launcher '", r"launcher '\w{1,16}' not installed", About("config",
             "The program that DeepSpeed starts other nodes with is not installed.",
             "Install it (pdsh) on the node that launches, or choose another with --launcher; with Slurm use srun in "
             "its place.")),
    _message("usage", "specified executable", r"unable to find the specified executable", About("config",
             "mpirun did not find the program on a node.", _PATH)),
    _message("unreachable", "command not", r"\b(?:orted|prted|hydra_\w{2,20}|srun|pdsh): command not found", About(
             "config", "The launcher's own program is not installed on a node, or not in its PATH.",
             "Install the same MPI or Slurm on all nodes, or start with the full path of mpirun (--prefix).")),
    _message("usage", "enough slots", r"not enough slots available", About("config",
             "mpirun was asked for more processes than its hosts have slots.",
             "Give each host its number of GPUs in the host file (slots=8), or start fewer processes.")),
    _message("usage", "execve(): ", r"slurmstepd: error: execve\(\): .{1,200}: (?:No such file|Permission denied)",
             About("config", "Slurm did not find the program of the job on a node, or may not start it.",
             f"{_PATH} A script that slurmd should have written itself: the disk of the node (/tmp, SlurmdSpoolDir) is "
             "full or was cleaned.")),
    _message("unreachable", "launch f", r"(?:Task launch for \S{1,40} failed on node \S{1,255}|Application launch "
             rf"failed): {_NOT_REACHED}", About("config",
             "Slurm did not reach a node of the job to start processes there, or one did not accept the other.",
             "Look at slurmd of the node that is named, and try its port (6818) and, from the node back to srun, "
             "SrunPortRange. Compare clocks, versions of Slurm, and munge with its key (munge -n | ssh NODE unmunge; "
             "sha256sum /etc/munge/munge.key).")),
    _message("other", "ask launch for", r"Task launch for \S{1,40} failed on node \S{1,255}: (?!Job cred)", About(
             "config", "Slurm could not start processes of the job on a node; the line says why.",
             "Read the log of slurmd on that node at this time (its prolog, cgroups); where the line speaks of tasks "
             "or CPUs, compare what srun asks for with what the job has (scontrol show job).")),
    _message("unreachable", "unge decode failed", r"Munge decode failed: (?!.{0,200}retrying)", About("config",
             "A daemon of Slurm could not verify where a message comes from: keys of munge or clocks differ, or munged "
             "does not run.",
             "Compare the nodes: sha256sum /etc/munge/munge.key, chronyc tracking, systemctl status munge; munge -n | "
             "ssh NODE unmunge tries it.")),
    _message("unreachable", "submission failed", rf"Batch job submission failed: {_NOT_REACHED}", About("config",
             "The controller of Slurm did not answer in time, or was not reached.",
             "Look at slurmctld: does it run (scontrol ping), is it overloaded (sdiag), and is its port open (6817)?")),
    _message("usage", "submission failed", r"Batch job submission failed: ", About("config",
             "Slurm refused the job; the line says why.",
             "Correct account, partition, QOS or the resources that the line names (sacctmgr show assoc, sinfo).")),
    _message("usage", "create step for job", r"Unable to create step for job \d{1,12}: ", About("config",
             "Slurm refused a step of the job; the line says why.",
             "Compare what srun asks for with what the job has (scontrol show job): memory, CPUs, GPUs.")),
    _message("usage", "Command not found: ", r"\[ERROR\] Command not found: \S", About("config",
             "A program that enroot or one of its hooks needs is not installed on the node; the line names it.",
             "Install it on all nodes, in the PATH of slurmd; nvidia-container-cli comes with "
             "libnvidia-container-tools.")),
    _message("timeout", "task launch", r"timeout waiting for task launch", About("host",
             "A node did not start its processes in time.",
             "Look at slurmd of the nodes that did not answer (scontrol show node, its log) and at their file "
             "systems.")),
    _message("unreachable", "Zero Bytes were", r"Zero Bytes were transmitted or received", About("config",
             "Slurm's daemons did not accept each other: munge, clocks or versions differ.",
             "Compare clocks (chronyc tracking), munge (munge -n | ssh NODE unmunge) and versions of Slurm.")),
    _message("unreachable", "kex_exchange", r"kex_exchange_identification: ", About("config",
             "The node took the connection of ssh and closed it at once.",
             "Look at sshd of that node: MaxStartups with many ranks, its hosts.deny, or a container that has no "
             "sshd.")),
    _message("unreachable", "ImagePull", r"Error: (?:ErrImagePull|ImagePullBackOff)", About("config",
             "The node could not fetch the image of the container.",
             "Read kubectl describe pod: name and tag, secret of the registry, proxy, disk of the node.")),
    _message("usage", "running Ray inst", r"Could not find any running Ray instance", About("config",
             "No Ray runs where the program looked for it.",
             "Start it (ray start --head), or name it with --address or RAY_ADDRESS.")),
    _message("timeout", "RendezvousTimeout", r"RendezvousTimeoutError", About("network",
             "Not all nodes came to torchrun's rendezvous in time.",
             "Compare --nnodes, --rdzv_id and --rdzv_endpoint of all nodes and when each was started; commwatch "
             "cluster check tries the paths between them.")),
    _message("crash", "RendezvousClosed", r"RendezvousClosedError", About("symptom",
             "torchrun came to a rendezvous that another node had closed, since its own processes had ended.",
             "Look at the logs of the other nodes: one ended first. Start all again with a new --rdzv_id.")),
    _message("no_interface", "find address for: ", r"ifa != nullptr\. Unable to find address for: ", About("config",
             "Gloo found no address at the interface that GLOO_SOCKET_IFNAME names.",
             "Give it the whole name of one interface of this node that has an address (ip -br addr); unlike NCCL, "
             "Gloo takes no beginnings and no exclusions such as ^lo.")),
    _message("crash", "finished reduction", r"Expected to have finished reduction in the prior iteration", About(
             "program", "Parameters of the model had no part in the loss, so that their gradients never came.",
             "Pass find_unused_parameters=True to DistributedDataParallel, or use all outputs of forward() in the "
             "loss; TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters.")),
    _message("socket", "Error: ", r"Error: .{0,80}(?:Name or service not known|Temporary failure in name resol)",
             NO_NAME),
    _message("socket", "gethostbyname failed", r"gethostbyname failed, \S{1,255} \(errno ", NO_NAME),
    _message("socket", "Max retries", r"HTTPSConnectionPool\(host='[^']{1,255}'.{0,80}Max retries exceeded", NO_SERVER),
)  # fmt: skip
"""The answer is certain."""

SIGNS_SAID: Final[tuple[Message, ...]] = (
    _message("other", "not responding", r"\bnfs: server \S{1,255} not responding", _STORAGE),
    _message("other", "LustreError", r"\bLustreError: ", _STORAGE),
    _message("other", "blocked for more", r"task \S{1,40} blocked for more than \d{1,4} seconds", About("host",
             "A process waits inside the kernel and cannot be ended: for a file system, a device or a driver.",
             "See what it waits for: cat /proc/PID/stack as root, and the lines of the kernel around it.")),
    _message("other", "soft lockup", r"soft lockup - CPU|rcu\w{0,12} .{0,20}detected stall", About("host",
             "A processor of the node was stuck inside the kernel.",
             "Read the stack that follows in the kernel log: it names the driver; drain the node.")),
    _message("crash", "Back-off", r"Back-off restarting failed container", About("unknown",
             "A container ended again and again, each time after its start.",
             "Read its last words: kubectl logs POD --previous, and kubectl describe pod for its exit code.")),
    _message("usage", "container start fail", r"pyxis: container start failed", About("config",
             "Pyxis could not start the container of the job.",
             "Read the lines of enroot after this one: they name the hook of /etc/enroot/hooks.d, the mount or the "
             "file that failed.")),
    _message("timeout", "ore based barrier to", r"Waiting in store based barrier to initialize", About("symptom",
             "Not all processes came to the barrier with which torch begins; the line counts those that did "
             "(worker_count or num_workers_joined) of world_size.",
             "See which ranks do not write this line, and look at their logs, or at their stacks if they run "
             "(py-spy dump --pid PID).")),
    _message("ib_setup", "GID is NULL", r"GID is NULL, please check your GID index", About("config",
             "An adapter has no address at the index of its GID table that Mooncake uses, which leaves it out.",
             "Set MC_GID_INDEX to the index of a RoCE v2 entry with the address between the nodes (show_gids; it can "
             "differ from node to node), or leave adapters out that have none.")),
    _message("socket", "TCP connect to a pee", r"Open MPI failed to TCP connect to a peer", MPI_INTERFACE),
    _message("unreachable", "ORTE ", r"ORTE (?:daemon has unexpectedly failed|was unable to reliably start)", About(
             "config", "mpirun could not start its daemon on a node, or the daemon did not reach mpirun.",
             "Read the lines before it. Try ssh NODE true from the node of mpirun, and the same Open MPI in PATH and "
             "LD_LIBRARY_PATH of all nodes; name their interface with --mca oob_tcp_if_include. In a job of Slurm, "
             "use srun --mpi=pmix, or an Open MPI that was built for Slurm (ompi_info lists plm: slurm).")),
    _message("waiting", "FailedMount", r"\bFailedMount\b", About("config",
             "A volume of the pod could not be mounted on its node.",
             "Read kubectl describe pod, and look at the storage's driver on that node.")),
)  # fmt: skip
"""Messages that programs write even if they go on: used only for a whole log without any other event."""

SAID_HINTS: Final = tuple(one.hint.encode() for one in MESSAGES_SAID)
SIGN_SAID_HINTS: Final = tuple(one.hint.encode() for one in SIGNS_SAID)
