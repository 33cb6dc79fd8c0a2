"""Messages that name their cause, and next steps that hold only for some versions of NCCL and some GPUs."""

from __future__ import annotations

import pytest

from commwatch.jobs.logs.messages import MESSAGES_SAID, SIGNS_SAID
from support.logs import answer_to
from support.passes import in_one_pass

LINES = """
Memory cgroup out of memory: Kill process 4321 (python3) score 1001 or sacrifice child
slurmstepd: error: Exceeded step memory limit at some point.
[55.1] Out of memory: Killed process 4321 (python3) total-vm:1234kB, anon-rss:1kB
XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.
OSError: [Errno 12] Cannot allocate memory
terminate called after throwing an instance of 'std::bad_alloc'
MemoryError
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
ValueError: Free memory on device (10.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9).
Memory on the node (IP: 10.0.0.2) was 12.49GB / 13.15GB (0.950003), which exceeds the memory usage threshold of 0.95.
ray.exceptions.ObjectStoreFullError: Failed to put object in object store because it is full.
RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file data/17: failed
libgomp: Thread creation failed: Resource temporarily busy
runtime: failed to create new OS thread (have 2 already; errno=11)
(raylet) file_system_monitor.cc:111: /tmp/ray is over 95% full, available space: 1; capacity: 2.
OSError: [Errno 116] Stale file handle
rdma_context.cpp:201] Failed to register memory 0x7f: Cannot allocate memory [12]
rdma_context.cpp:198] Failed to register memory 0x2e1c: Bad address [14]
/src/host/topo/topo.cpp:469: [GPU 1] Peer GPU 8 is not accessible, exiting ...
/src/host/transport/transport.cpp:nvshmemi_transport_init:287: Unable to initialize any transports. returning error.
[17.1] [n1:1:0] proto_reconfig.c:60 UCX  ERROR cannot find remote protocol for: c_0 cfg#2 | put from cuda/GPU0 to host
[17.1] [n1:1:0] ucp_device.c:415  UCX  ERROR failed to select lane for local device GPU0
EFA internal error: (4111) RMA address verification failed
NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library. Multi-GPU collectives will not work.
mlx5_cmd_out_err:800:(pid 1): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8)
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment
Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error
[12.1] nvidia: probe of 0000:b3:00.0 failed with error -1
AssertionError: Torch not compiled with CUDA enabled
RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.
RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA
RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing use spawn
ImportError: /lib/libc.so.6: version `GLIBC_2.32' not found (required by /opt/x.so)
hipErrorNoBinaryForGpu: Unable to find code object for all current devices!
RuntimeError: No HIP GPUs are available
:0:rocdevice.cpp :2652: aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate
:0:rocdevice.cpp:3586: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: a hardware exception.
Memory access fault by GPU node-2 (Agent handle: 0x5591ab02d9d0) on address 0x7f2aa0200000. Reason: Page not present.
[91.1] amdgpu 0000:c5:00.0: amdgpu: ring sdma0 timeout, signaled seq=26, emitted seq=27
GPUassert: an illegal memory access was encountered kernel.cu 88
nv-fabricmanager: request to query NVSwitch device information from NVSwitch driver failed with error
nv-fabricmanager[3]: fabric manager NVIDIA GPU driver interface version 5.30 don't match with driver version 5.31.
[90.1] EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#0_DIMM#0
[90.1] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000010091
RuntimeError: launcher 'pdsh' not installed.
mpirun was unable to find the specified executable file, and therefore did not launch the job.
bash: orted: command not found
There are not enough slots available in the system to satisfy the 16 slots that were requested
slurmstepd: error: execve(): /home/u/run.sh: Permission denied
srun: error: Task launch for StepId=34.0 failed on node n7: Socket timed out on send/recv operation
srun: error: Task launch for StepId=34.0 failed on node n7: Job prolog failed
slurmd: error: Munge decode failed: Invalid credential
sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)
sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified
srun: error: Unable to create step for job 123: Memory required by task is not available
slurmstepd: error: pyxis:     [ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/x
srun: error: timeout waiting for task launch, started 3 of 4 tasks
srun: error: Unable to confirm allocation for job 12: Zero Bytes were transmitted or received
kex_exchange_identification: Connection closed by remote host
Warning  Failed  2m  kubelet  Error: ImagePullBackOff
ConnectionError: Could not find any running Ray instance. Please specify the one to connect to
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError
torch.distributed.elastic.rendezvous.api.RendezvousClosedError
RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: ^lo
RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.
ValueError: host not found: Name or service not known
MPID_nem_tcp_init(379).............: gethostbyname failed, node7 (errno 1)
MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded
[91.1] nfs: server filer1 not responding, still trying
[91.1] LustreError: 11-0: scratch-OST0001-osc: operation ost_write to node failed: rc = -107
[91.1] INFO: task python:1234 blocked for more than 120 seconds.
[91.1] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]
Warning  BackOff  2m  kubelet  Back-off restarting failed container trainer in pod job-worker-0
slurmstepd: error: pyxis: container start failed with error code: 1
Waiting in store based barrier to initialize process group for rank: 2, key: k:2 (world_size=8, worker_count=7)
W0601 10:00:01.1 77 rdma_context.cpp:1132] GID is NULL, please check your GID index by specifying MC_GID_INDEX
WARNING: Open MPI failed to TCP connect to a peer MPI process.  This should not happen.
ORTE was unable to reliably start one or more daemons.
Warning  FailedMount  2m  kubelet  MountVolume.SetUp failed for volume "data": rpc error
""".strip().splitlines()
"""One for each row, in its order."""


def test_every_message_gets_the_words_of_its_row() -> None:
    """Alone in a log, whatever the rows before it say."""
    wrong = []
    for line, row in zip(LINES, (*MESSAGES_SAID, *SIGNS_SAID), strict=True):
        (incident,) = answer_to(f"step 1 loss 2.0\n{line}\n").incidents
        if (incident.category, incident.happened) != (row.of, row.about.happened):
            wrong.append((line, incident.category, incident.happened))

    assert wrong == []


NO_GID = (
    "n1:1:2 [0] a.cc:1 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev r1:1, local GID 3\n"
)
NO_DEVICE = "n1:1:2 [0] a.cc:1 NCCL WARN Call to ibv_open_device failed\n"
NO_NVLS = "n1:1:2 [0] a.cc:1 NCCL WARN Cuda failure 802 'system not yet initialized'\n"
TIMEOUT = "[Rank 1] Watchdog caught collective operation timeout: ran for 600011 milliseconds before timing out.\n"
LOCAL_PROT = (
    "n1:1:2 [0] a.cc:1 NCCL WARN NET/IB: Got completion from peer n2<5> with status=4 opcode=0 len=0 vendor err 81\n"
)


@in_one_pass(
    "line, facts, says, never",
    [
        (NO_GID, "2.20.5", "set NCCL_IB_GID_INDEX", "remove"),
        (NO_GID, "2.21.0", "remove NCCL_IB_GID_INDEX", "show_gids"),
        (NO_GID, "2.9.9 2.21.5", "set NCCL_IB_GID_INDEX", "remove"),  # the oldest counts
        (NO_GID, "", "Look at the version of NCCL", "NCCL 2.21 and newer chooses"),
        (NO_DEVICE, "2.20.5", "", "show_gids"),
        (NO_NVLS, "H100", "", "NVLSM"),
        (NO_NVLS, "B200", "On this GPU NVLSM", "nvidia-smi -L"),
        (NO_NVLS, "B200 B300", "On this GPU NVLSM", "nvidia-smi -L"),
        (NO_NVLS, "A100 B200", "nvidia-smi -L", "On this GPU"),  # nodes of several generations are as good as unknown
        (NO_NVLS, "", "nvidia-smi -L", "On this GPU"),
        (TIMEOUT, "2.23.4", "", "ncclras"),
        (TIMEOUT, "2.24.3", "ncclras", "\n"),
        (LOCAL_PROT, "2.12.12", "no DMA-BUF", "\n"),
    ],
)  # fmt: skip
def test_a_step_that_depends_on_version_or_gpu_is_given_where_it_holds_and_asks_where_nothing_is_known(
    line: str, facts: str, says: str, never: str
) -> None:
    """By the versions and GPUs that the log names; the step of the answer itself stays."""
    known = "".join(f"NCCL version {one}+cuda12.4\n" if one[0] == "2" else f"NVIDIA {one}\n" for one in facts.split())
    (bare,), (incident,) = (
        answer_to(line + "NCCL version 2.23.0+cuda12\n").incidents,
        answer_to(known + line).incidents,
    )

    assert incident.next_step.startswith(bare.next_step.split(". ")[0])
    assert says in incident.next_step
    assert never not in incident.next_step


GDR_OFF = (
    "w{0}:41:80 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
    "w{0}:41:80 [0] NCCL INFO Using network IB\n"
)


@pytest.mark.parametrize(
    ("gpu", "verdict"),
    [("NVIDIA GeForce RTX 4090", "clear"), ("NVIDIA H100 80GB HBM3", "slow"), ("", "slow")],
)
def test_gpudirect_that_a_gpu_does_not_have_is_no_fault(gpu: str, verdict: str) -> None:
    """Where the log does not name the GPU, the step asks for it."""
    answer = answer_to(f"{gpu}\n{GDR_OFF.format(0)}{GDR_OFF.format(1)}step 100 loss 2.0\n")

    assert answer.verdict == verdict
    assert [("nvidia-smi -L" in one.next_step) for one in answer.incidents] == (
        [] if gpu[:9] == "NVIDIA Ge" else [not gpu]
    )


OLD = (
    "w{0}:41:80 [0] misc/ibvwrap.cu:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    "w{0}:41:80 [0] NCCL INFO Using internal Network Socket\n"
)


def test_old_versions_say_in_other_words_that_they_use_tcp() -> None:
    """NCCL 2.3; on one node nothing is slow."""
    (incident,) = answer_to(f"{OLD.format(0)}{OLD.format(1)}step 100 loss 2.0\n").incidents

    assert "libibverbs" in incident.happened
    assert answer_to(f"{OLD.format(0)}step 100 loss 2.0\n").verdict == "clear"


DEVICES = "# Using devices\n#   Rank  0 Pid  {0} on  n{0} device  0 [0x3b] Tesla V100-PCIE-32GB\n"
TABLE = (
    "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
    "  33554432  8388608  float  sum  101.22  331.50  {0}  0e+00  0.52  6477.82  {0}  0e+00\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {0}\n"
)


@pytest.mark.parametrize(
    ("text", "is_alone"),
    [
        (DEVICES.format(1) + DEVICES.format(2) + TABLE.format("0.00"), True),
        (DEVICES.format(1) + DEVICES.format(2) + TABLE.format("9.00"), False),
        (DEVICES.format(1) + TABLE.format("0.00"), False),
        (DEVICES.format(1) + TABLE.format("0.00") + DEVICES.format(1) + TABLE.format("0.00"), False),
    ],
)
def test_processes_of_nccl_tests_that_each_ran_alone_measured_nothing(text: str, is_alone: bool) -> None:
    """As they do without MPI=1; one GPU that somebody tests alone is no fault."""
    answer = answer_to(text)

    assert answer.verdict == ("trouble" if is_alone else "clear")
    assert ["MPI=1" in one.next_step for one in answer.incidents] == [True] * is_alone


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("task 1 exit code 0", "task 2 exit code 137"),
        ("failed to connect to n1 (errno: 97)", "failed to connect to n1 (errno: 111)"),
        ("cannot find 12ab34cd: skipped", "cannot find 12ab34cd: aborted"),
    ],
)
def test_a_line_is_not_passed_over_for_one_that_means_something_else(before: str, line: str) -> None:
    """Of lines that differ only in numbers and identifiers one speaks for all; 0 and codes are no such numbers."""
    alone = answer_to(f"{line}\n")
    answer = answer_to(f"{before}\n" * 3 + f"{line}\n")

    assert [one.category for one in answer.incidents] == [one.category for one in alone.incidents]
