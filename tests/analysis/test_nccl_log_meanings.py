"""commwatch diagnose --log: what a line says of its cause, jobs that crawl, tables of nccl-tests."""

from __future__ import annotations

import gzip
import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from commwatch.commands.diagnose_log import LogAnswer, answer_from, log_lines
from commwatch.errors import UsageError
from commwatch.jobs.logs import reading
from support.logs import answer_to

CUDA = "RuntimeError: CUDA error: {}\n"
WORKS = "step 100 loss 2.0\n"
SOCKET = (
    "w{0}:41:80 [0] NCCL INFO NET/Socket : Using [0]{1}:10.0.0.{0}<0>\nw{0}:41:80 [0] NCCL INFO Using network Socket\n"
)
STARTED = "w0:41:80 [0] NCCL INFO comm 0x1 rank 0 nranks {} cudaDev 0 busId 1 - Init COMPLETE\n"
NO_LIBRARY = "w0:41:80 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
NO_DEVICE = "w0:41:80 [0] NCCL INFO NET/IB : No device found.\n"
CHANNEL = "w0:41:80 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/{}\n"
HEADER = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.1\n"


def row(size: int, busbw: float, wrong: int = 0) -> str:
    """A row of nccl-tests, GB/s."""
    rates = f"100.1 {busbw / 2:.2f} {busbw:.2f}"
    return f"{size} {size // 4} float sum -1 {rates} {wrong} {rates} 0\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.log"


def said(answer: LogAnswer) -> str:
    return "\n".join("".join(text for text, _ in line) for line in log_lines(answer))


@pytest.mark.parametrize(
    ("line", "category", "side", "words", "never"),
    [
        (CUDA.format("no kernel image is available for execution on the device"), "version", "config",
         "compute_cap", "Xid"),
        (CUDA.format("invalid device ordinal"), "usage", "config", "CUDA_VISIBLE_DEVICES", "Xid"),
        (CUDA.format("all CUDA-capable devices are busy or unavailable"), "cuda", "config", "exclusive", "Lower"),
        (CUDA.format("uncorrectable ECC error encountered"), "cuda", "gpu", "ROW_REMAPPER", "program itself"),
        (CUDA.format("uncorrectable NVLink error detected during the execution"), "nvls", "nvlink",
         "SXids", "program"),
        (CUDA.format("device-side assert triggered"), "cuda", "program", "CUDA_LAUNCH_BLOCKING", "Xid"),
        (CUDA.format("an illegal memory access was encountered"), "cuda", "program", "compute-sanitizer", "reboot"),
        (CUDA.format("out of memory"), "oom", "program", "on that GPU", "limit"),
        ("srun: error: n1: task 0: Out Of Memory\n", "oom", "config", "--mem of Slurm", "on that GPU"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4.0.\n", "oom", "config", "--mem", "on that GPU"),
        ("slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2024-11-28T11:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD\n"
         "srun: error: n1: tasks 0-7: Killed\n", "cancelled", "host", "scontrol show node", "oom-kill"),
        ("Pod w-3 Failed: OOMKilled (exit code 137)\n", "oom", "config", "limits.memory", "on that GPU"),
        ("[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 0] Heartbeat monitor timed out! Process will be ended\n",
         "teardown", "symptom", "py-spy", "something had failed"),
        (CUDA.format("system not yet initialized"), "nvls", "nvlink", "nvidia-fabricmanager", "NCCL_NVLS_ENABLE=0"),
        ("n1:1:2 [0] init.cc:9 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'\n",
         "version", "config", "torch.version.cuda", "program itself"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "version", "config", "reboot", "device files"),
        ("Failed to initialize NVML: Unknown Error\n", "cuda", "config", "daemon-reload", "program itself"),
        ("RuntimeError: No CUDA GPUs are available\n", "cuda", "config", "--gres", "program itself"),
        ("-> CUDA driver is a stub library\n", "version", "config", "lib64/stubs", "Xid"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n", "version",
         "config", "LD_LIBRARY_PATH", "Xid"),
        ("n1:1:2 [0] misc/socket.cc:52 NCCL WARN Net : Call to socket failed: Too many open files\n", "limit", "config",
         "ulimit -n", "firewall"),
        ("RuntimeError: can't start new thread\n", "limit", "config", "pids-limit", "other ranks"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/iter_7'\n", "limit", "config", "df -h", "other ranks"),
        ("n1:1:2 [0] misc/ibvwrap.cc:248 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n",
         "ib_setup", "config", "memlock", "NCCL_IB_GID_INDEX"),
        ("ssh: connect to host node-7 port 22: Connection refused\n", "unreachable", "config",
         "ssh NODE", "MASTER_PORT"),
        ("srun: error: Unable to create step for job 4: More processors requested than permitted\n", "usage", "config",
         "scontrol", "port in use"),
        ("RuntimeError: custom_all_reduce.cuh:336 'invalid argument'\n", "p2p", "host", "--disable-custom-all-reduce",
         "other ranks"),
        ("n1:1:2 [0] misc/socket.cc:483 NCCL WARN Connect to 10.0.0.3<51234> failed : No route to host\n", "socket",
         "network", "firewall", "other ranks"),
        ("n1:1:2 [0] misc/socket.cc:483 NCCL WARN Connect to 10.0.0.3<51234> failed : Connection refused\n", "socket",
         "network", "commwatch cluster check", "other ranks"),
        ("n1:1:2 [0] misc/socket.cc:9 NCCL WARN socket address family 7 is neither AF_INET(2) nor AF_INET6(10)\n",
         "no_interface", "config", "NCCL version", "Correct NCCL_SOCKET_IFNAME"),
        ("[1.0] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n", "cuda", "host",
         "0000:1b:00.0", "Look for an Xid"),
        ("[1.0] NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=python, Ch 00000010, MMU Fault\n", "cuda", "program",
         "compute-sanitizer", "reset"),
        ("[1.0] NVRM: Xid (PCI:0000:1b:00): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error\n", "cuda",
         "program", "compute-sanitizer", "reset"),
        ("[1.0] NVRM: Xid (PCI:0000:1b:00): 9999, pid=1, name=python, Ch 00000010\n", "cuda", "gpu",
         "does not know", "program itself"),
        ("[1.0] mlx5_core 0000:86:00.0: poll_health:825:(pid 0): Fatal error 1 detected\n", "ib_async", "network",
         "0000:86:00.0", "other ranks"),
        ("[1.0] pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0\n", "pcie", "host",
         "power cycle", "program"),
        ("[1.0] NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)\n",
         "cuda", "gpu", "--gpu-reset", "program itself"),
        ("F0101 10:00:00.1 7 a.cc:5] Check failed: Cuda Error: CUDA driver version is insufficient for CUDA runtime "
         "version\n", "version", "config", "torch.version.cuda", "other ranks"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on "
         "non supported HW\n", "version", "config", "cuda-compat", "other ranks"),
        ("n1: Test CUDA failure common.cu:9 'CUDA-capable device(s) is/are busy or unavailable'\n", "cuda", "config",
         "exclusive", "other ranks"),
        ("RuntimeError: unable to open shared memory object </torch_7_9> in read-write mode\n", "limit", "config",
         "ulimit -n", "other ranks"),
        ("RuntimeError: unable to open shared memory object </torch_7_9> in read-write mode: No such file or directory "
         "(2)\n", "shm_gone", "config", "one /dev/shm", "ulimit -n"),
        ("RuntimeError: unable to mmap 64 bytes from file </torch_7_9>: unable to allocate shared memory(shm) for file "
         "</torch_7_9>: No space left on device (28)\n", "shm", "config", "--shm-size", "ulimit -n"),
        ("4m Warning Evicted pod/w-1 The node was low on resource: memory.\n", "oom", "config", "request", "scheduler"),
        ("4m Warning Evicted pod/w-1 The node was low on resource: ephemeral-storage.\n", "limit", "config",
         "container's disk", "scheduler"),
        ("[1.0] [n1:7:0] ib_log.c:246 UCX ERROR mlx5_0: ibv_create_cq(cqe=4096) failed: Cannot allocate memory\n",
         "ib_setup", "config", "memlock", "NCCL_IB_GID_INDEX"),
        ("subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no n7 hostname' returned non-zero exit "
         "status 255.\n", "unreachable", "config", "ssh NODE", "other ranks"),
        ("submitit INFO (2026-01-01) - Job not requeued because: timed-out and not checkpointable.\n", "cancelled",
         "symptom", "more time", "other ranks"),
        ("RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 2000000 ms\n", "timeout", "symptom",
         "the ranks that the line names", "do not report"),
        ("n1:1:2 [0] include/socket.h:403 NCCL WARN Connect to fe80::1%11<41233> failed : Connection timed out\n",
         "socket", "config", "NCCL_SOCKET_IFNAME", "Open the ports"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load this file\n", "socket", "config",
         "HF_HUB_OFFLINE", "cluster check"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
         "failed.\n", "socket", "network", "--rdzv_endpoint", "peer that is named"),
        ("ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.\n",
         "waiting", "config", "ray status", "traceback"),
        ("RuntimeError: received 0 items of ancdata\n", "limit", "config", "ulimit -n", "other ranks"),
        ("May 2 04:11:02 n7 kernel: mlx5_core 0000:4b:00.0 eth2: TX timeout detected\n", "ib_async", "network",
         "soft lockup", "other ranks"),
        ("srun: error: Task launch for 4.0 failed on node cn7: Job credential expired\n", "unreachable", "config",
         "clocks", "other ranks"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
         "port: 4, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n", "usage", "config",
         "ss -ltnp", "other ranks"),
        ("Failed, NCCL error /src/allreducePlugin.cpp:295 'internal error - please report this issue'\n", "other",
         "unknown", "NCCL_DEBUG=WARN", "other ranks"),
        ("Last error:\nInvalid config blocking attribute value -2147483648\n", "version", "config", "nvidia-nccl-",
         "Correct the call"),
        ("Last error:\nInvalid config blocking attribute value 5\n", "usage", "program", "Correct the call",
         "nvidia-nccl"),
        ("n1:1:2 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01\n",
         "other", "config", "newer NCCL", "other ranks"),
        ("ssh: Could not resolve hostname job-w-0.job: Name or service not known\n", "unreachable", "config", "getent",
         "key"),
        ("ssh: connect to host n7 port 22: Connection refused\n", "unreachable", "config", "ssh NODE", "getent"),
        ("n1: Test NCCL failure common.cu:777 'unhandled system error'\n", "other", "unknown", "NCCL_DEBUG=WARN",
         "other ranks"),
        ("RuntimeError: NCCL error in: /c10d/ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8\n",
         "cuda", "unknown", "NCCL_DEBUG=WARN", "to blame"),
        ("NCCL error in: /c10d/NCCLUtils.hpp:219, invalid usage, NCCL version 2.14.3\n", "usage", "unknown",
         "NCCL_DEBUG=WARN", "Correct the call"),
        ("NCCL operation ncclCommInitRank(&comm) failed: unhandled cuda error. Last NCCL warning(error) log entry (may "
         "be unrelated) 'Cuda failure 2 'out of memory''.\n", "oom", "program", "on that GPU", "NCCL_DEBUG"),
        ("ncclCommInitRank failed: invalid usage. Last NCCL warning(error): 'Bootstrap : no socket interface found'\n",
         "no_interface", "config", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG"),
        ("NCCL operation ncclCommInitRank(&comm) failed: unhandled system error. Last NCCL warning(error) ''.\n",
         "other", "unknown", "NCCL_DEBUG=WARN", "other ranks"),
        ("srun: error: Timed out waiting for job step to complete\n", "cancelled", "symptom", "before this one",
         "other ranks"),
        ("srun: error: Task launch for StepId=3.0 failed on node n4: Socket timed out on send/recv operation\n"
         "srun: error: Timed out waiting for job step to complete\n", "unreachable", "config", "munge.key",
         "other ranks"),
        ("[n1][[9,1],1][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to 10.0.0.2 failed: No "
         "route to host (113)\n", "socket", "network", "btl_tcp_if_include", "NCCL_SOCKET_IFNAME"),
        ("[n1:6] btl: tcp: Match incoming connection from [[2,1],1] 10.0.0.4 with locally known IP 10.1.0.7 failed "
         "(iface 0/4)!\n", "other", "network", "btl_tcp_if_include", "other ranks"),
        ("nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]\n",
         "other", "host", "iommu=pt", "other ranks"),
        ("RuntimeError: Gloo connectFullMesh failed: connect [127.0.0.1]:2: Connection refused, remote=[127.0.0.1]:9\n",
         "socket", "network", "GLOO_SOCKET_IFNAME", "commwatch cluster check"),
        ("TimeoutError: The client socket has timed out after 1800s while trying to connect to (127.0.0.1, 48391).\n",
         "timeout", "network", "MASTER_ADDR as one that all reach", "between the nodes"),
        ("DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (::1, 29500).\n",
         "timeout", "network", "MASTER_ADDR as one that all reach", "between the nodes"),
        ("cupy.CUDADriverError: CUDA_ERROR_NOT_FOUND: named symbol not found\n", "cuda", "config", "names its own",
         "Xid"),
        ("n1:6:7 [0] p2p.cc:266 NCCL WARN hipIpcOpenMemHandle failed : invalid argument\n", "p2p", "host", "--ipc=host",
         "Correct the call"),
        ("n1:6:7 [0] graph/rings.cc:41 NCCL WARN Error : ring 1 does not contain rank 0\n", "other", "config",
         "NCCL_GRAPH_FILE", "other ranks"),
        ("[rank8] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.\n"
         "Gloo connectFullMesh failed: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215\n", "socket", "config",
         "On several nodes set GLOO_SOCKET_IFNAME", "MASTER_ADDR"),
        ("Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.\n"
         "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
         "(localhost, 29500).\n", "timeout", "network", "MASTER_ADDR", "GLOO"),
        ("W0601 10:00:01.1 77 rdma_context.cpp:1132] GID is NULL, please check your GID index by specifying "
         "MC_GID_INDEX\n", "ib_setup", "config", "MC_GID_INDEX", "NCCL_IB_GID_INDEX"),
        ("ray.exceptions.ActorUnavailableError: The actor 1 is unavailable: RpcError: Socket closed rpc_code: 14\n",
         "crash", "unknown", "--min-worker-port", "traceback"),
        ("ray.exceptions.ActorDiedError: The actor is dead because its worker process has died. Worker exit type: "
         "SYSTEM_ERROR\n", "crash", "unknown", "oom-kill", "traceback"),
    ],
)  # fmt: skip
def test_a_line_that_says_why_is_taken_at_its_word(line: str, category: str, side: str, words: str, never: str) -> None:
    """Its category, where the cause lies, and a next step that can help."""
    answer = answer_to(line)
    (incident,) = answer.incidents

    assert (incident.category, incident.side) == (category, side)
    assert words in f"{incident.happened} {incident.next_step}"
    assert never not in f"{incident.happened} {incident.next_step}"


@pytest.mark.parametrize(
    "line",
    [
        "[1.0] mlx5_core 0000:86:00.0: mlx5_pcie_event:301:(pid 1): Detected insufficient power on the PCIe slot.\n",
        "[1.0] nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20001, Non-fatal, Link 46 TX Replay Error\n",
        "[1.0] pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0\n",
        "n1:7:9 [0] net_fastsocket.cc:785 NCCL WARN Maximum retry reached for accept 3.\n",
        "/src/ibrc.cpp:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.\n",
        "I0510 07:28:04.41 139 distributed_c10d.py:337] Waiting in store based barrier to initialize process group for "
        "rank: 2, key: k:2 (world_size=8, worker_count=7, timeout=0:30:00)\n",
    ],
)
def test_what_healthy_nodes_log_is_no_trouble(line: str) -> None:
    """Slot power, corrected errors, an SXid that the driver calls harmless; retries, transports that are passed over
    and ranks that come late, where the job then works."""
    assert answer_to(line + WORKS).verdict == "clear"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR Could not find user with id 3",
        "ERROR the route does not loop back to start",
        "ERROR dns: Unable to find address for: host.example",
        "ERROR Failed to modify QP to ERR state",  # a connection that is taken down
    ],
)
def test_words_of_other_programs_name_no_certain_cause(line: str) -> None:
    """They are like those of NCCL, Gloo and perftest."""
    assert not any(incident.certain for incident in answer_to(f"{line}\n").incidents)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 29006, Fatal, Link 46 MC TS crumbstore MCTO (First)",
         "NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error on link 14(0x0)",
         "Xid 74 of 0000:1b:00.0"),
        ("pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0",
         "NVRM: Xid (PCI:0000:17:00): 79, pid=1, name=python, GPU has fallen off the bus.", "Xid 79 of 0000:17:00.0"),
    ],
)  # fmt: skip
def test_the_first_event_of_the_kernel_leads(first: str, second: str, named: str) -> None:
    """What it led to stands under it."""
    answer = answer_to(f"[1.1] {first}\n[1.2] {second}\n")

    assert answer.incidents[0].line == 1
    assert answer.incidents[0].followed_by == (named,)
    assert f"followed by: {named}" in said(answer)


@pytest.mark.parametrize(
    ("lines", "leads"),
    [
        (("NVRM: Xid (PCI:0000:9b:00): 45, pid=7, name=python, Ch 00000008",
          "NVRM: Xid (PCI:0000:9b:00): 74, pid=7, name=python, NVLink: fatal error on link 6(0x0)"), 2),
        (("NVRM: Xid (PCI:0000:9b:00): 45, pid=7, name=python, Ch 00000008",), 1),
        (("NVRM: Xid (PCI:0000:9b:00): 74, pid=7, name=python, NVLink: fatal error on link 6(0x0)",
          "n1:7:9 [5] enqueue.cc:1044 NCCL WARN Cuda failure 'unspecified launch failure'"), 1),
        (("n1:7:9 [5] enqueue.cc:1044 NCCL WARN Cuda failure 'unspecified launch failure'",
          "NVRM: Xid (PCI:0000:9b:00): 74, pid=7, name=python, NVLink: fatal error on link 6(0x0)"), 1),
    ],
)  # fmt: skip
def test_the_kernel_names_the_fault_of_which_cuda_fails(lines: tuple[str, ...], leads: int) -> None:
    """An Xid 45 only where nothing else is reported; of the kernel and CUDA whoever was first."""
    answer = answer_to("".join(f"{line}\n" for line in lines))

    assert answer.incidents[0].line == leads


def test_a_long_line_is_cut_before_the_words_that_say_why() -> None:
    """So that they are shown and understood."""
    (incident,) = answer_to(
        f"UserWarning: {'x' * 400} Error 802: system not yet initialized (at a.cpp:112)\n"
    ).incidents

    assert "nvidia-fabricmanager" in incident.next_step
    assert incident.text.endswith("system not yet initialized")
    assert len(incident.text) == 300


@pytest.mark.parametrize(
    ("errno", "side", "words"),
    [
        ("errno: 111 - Connection refused", "network", "Nobody listened"),
        ("errno: 113 - No route to host", "network", "no way to the address"),
        ("errno: 110 - Connection timed out", "network", "did not answer"),
        ("gai error: -2 - Name or service not known", "config", "could not be resolved"),
    ],
)
def test_a_time_out_while_connecting_has_the_reason_of_an_earlier_line(errno: str, side: str, words: str) -> None:
    """The line that gives up names none; nobody is sent to the logs of the other ranks."""
    answer = answer_to(
        f"[W socket.cpp:663] [c10d] The client socket has failed to connect to [node0]:29500 ({errno}).\n"
        "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to "
        "(node0, 29500).\n",
    )
    (incident,) = answer.incidents

    assert (incident.category, incident.side, incident.line, incident.named) == ("socket", side, 1, ("node0",))
    assert words in incident.happened
    assert "other ranks" not in incident.next_step


def test_the_last_exception_of_the_first_chain_is_shown() -> None:
    """Python prints the error that ends a chain last; what another chain says later is not taken."""
    answer = answer_to(
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nLookupError: 'rank'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in g\nRuntimeError: Tensor shapes do not fit\n'
        'Traceback (most recent call last):\n  File "c.py", line 3, in h\nRuntimeError: a later one\n',
    )

    assert (answer.incidents[0].line, answer.incidents[0].text) == (9, "RuntimeError: Tensor shapes do not fit")
    assert answer.incidents[0].side == "unknown"


def test_a_job_that_waits_for_resources_is_named_until_it_works() -> None:
    """Ray and Slurm write it at the level of information."""
    waits = "INFO 10-01 12:00:01 ray_utils.py:301] Waiting for creating a placement group of specs for 10 seconds.\n"

    (incident,) = answer_to(waits).incidents
    assert (incident.category, incident.certain) == ("waiting", False)
    assert answer_to(waits + WORKS).verdict == "clear"


# --- it works, slowly ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NO_LIBRARY + SOCKET.format(0, "eth0") + CHANNEL.format("Socket/0"), "libibverbs is not in the image"),
        (NO_DEVICE + SOCKET.format(0, "ib0") + CHANNEL.format("Socket/0"), "/dev/infiniband"),
        (NO_DEVICE + "w0:41:41 [0] NCCL INFO NCCL_IB_HCA set to mlx5_7\n" + SOCKET.format(0, "eth0")
         + CHANNEL.format("Socket/0"), "NCCL_IB_HCA names no adapter"),
        ("w0:41:80 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + SOCKET.format(0, "eth0")
         + SOCKET.format(1, "eth0"), "NCCL_IB_DISABLE forbids"),
        ("w0:41:80 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n" + SOCKET.format(0, "eth0")
         + STARTED.format(16), "could not open it"),
        ("w0:41:80 [0] NCCL INFO NET/OFI Selected Provider is tcp (found 1 nics)\n"
         "w0:41:80 [0] NCCL INFO Using network AWS Libfabric\n" + STARTED.format(32), "provider tcp"),
        ("w0:41:80 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 0.\n" + NO_DEVICE + SOCKET.format(0, "eth0")
         + CHANNEL.format("Socket/0"), "settings ask for RDMA"),
        ("w0:41:80 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n" + CHANNEL.format("IB/0")
         + STARTED.format(16), "nvidia-peermem"),
    ],
)  # fmt: skip
def test_a_job_that_crawls_over_tcp_is_said_to_work_slowly(text: str, words: str) -> None:
    """With the reason and what to do; exit code 1, and no all-clear."""
    answer = answer_to(text + WORKS)
    (incident,) = answer.incidents

    assert answer.verdict == "slow"
    assert words in f"{incident.happened} {incident.next_step}"
    assert "The job shows work, but is slow." in said(answer)
    assert "No errors found" not in said(answer)


@pytest.mark.parametrize(
    "text",
    [
        NO_LIBRARY + SOCKET.format(0, "eth0") + STARTED.format(8),
        NO_LIBRARY + SOCKET.format(0, "eth0") + STARTED.format(16),
        "w0:41:80 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + SOCKET.format(0, "eth0"),
        NO_LIBRARY + "w0:41:80 [0] NCCL INFO Using network IB\n" + CHANNEL.format("IB/0/GDRDMA"),
        "w0:41:80 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'\n" + CHANNEL.format("IB/0/GDRDMA"),
    ],
)
def test_a_job_on_one_node_or_over_rdma_is_well(text: str) -> None:
    """NCCL writes of sockets on every node without RDMA, also where no byte goes over them."""
    answer = answer_to(text + WORKS)

    assert (answer.verdict, answer.notes) == ("clear", ())


def test_of_tcp_between_nodes_without_a_sign_of_rdma_it_is_unknown_whether_the_job_is_slow() -> None:
    """Whether the nodes have an adapter is not in the log, and an all-clear would be wrong for those that have one."""
    answer = answer_to(NO_DEVICE + SOCKET.format(0, "eth0") + CHANNEL.format("Socket/0") + WORKS)

    assert (answer.verdict, answer.works.rpartition("/")[2]) == ("unknown", "0.log:5")
    assert "talk over TCP" in said(answer)
    assert "whether it is slow" in said(answer)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("w0:41:80 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n" + SOCKET.format(0, "eth0")
         + STARTED.format(4), "NCCL_P2P_DISABLE"),
        ("w0:41:80 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n" + SOCKET.format(0, "eth0")
         + STARTED.format(1), ""),
        ("w0:41:80 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n" + SOCKET.format(0, "eth0")
         + SOCKET.format(1, "eth0") + STARTED.format(2), ""),
        ("w0:41:80 [0] NCCL INFO + PCI[0.1] - PCI/FFFFFF000 (104c823200000000)\n" + STARTED.format(8),
         "NCCL_TOPO_FILE"),
        ("w0:41:80 [0] NCCL INFO + PCI[1.0] - PCI/FFFFFF000 (104c823200000000)\n" + STARTED.format(8), ""),
        ("w0:41:80 [0] NCCL INFO + PCI[0.2] - NIC/8000\n" + STARTED.format(8), ""),
        ('<pci busid="ffff:ff:00.0" class="0x060400" vendor="0x104c" link_speed="2.5 GT/s PCIe" link_width="1">\n',
         "NCCL_TOPO_FILE"),
        ('<pci busid="0000:16:00.0" class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">\n',
         ""),
        ("w0:41:80 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n" + STARTED.format(8),
         "GPUDirect RDMA is off"),
    ],
)  # fmt: skip
def test_what_slows_a_node_is_a_note(text: str, note: str) -> None:
    """P2P that is off, an emulated switch, and GPUDirect where nothing shows several nodes."""
    notes = " ".join(one for one in answer_to(text).notes if "talk over TCP" not in one)

    assert note in notes
    assert bool(notes) == bool(note)


def test_a_crash_is_not_hidden_by_a_slow_network() -> None:
    """Trouble leads, and the transport stands beside it."""
    slow = NO_LIBRARY + SOCKET.format(0, "eth0") + CHANNEL.format("Socket/0") + STARTED.format(16)
    answer = answer_to(slow + CUDA.format("uncorrectable ECC error encountered"))

    assert (answer.verdict, answer.incidents[0].category) == ("trouble", "cuda")
    assert "libibverbs" in " ".join(answer.notes)


def test_a_job_that_never_worked_is_not_slow() -> None:
    """Sockets were chosen, and nothing came after it."""
    answer = answer_to(NO_LIBRARY + SOCKET.format(0, "eth0") + CHANNEL.format("Socket/0"))

    assert answer.verdict == "unknown"


@pytest.mark.parametrize(
    ("text", "age_seconds", "verdict"),
    [
        (NO_LIBRARY + SOCKET.format(0, "eth0") + CHANNEL.format("Socket/0") + STARTED.format(16), 0, "unknown"),
        (
            "w0:41:80 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n"
            + SOCKET.format(0, "eth0")
            + STARTED.format(16)
            + "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error\n",
            0,
            "trouble",
        ),
    ],
)
def test_a_job_that_hangs_or_died_is_not_said_to_work(log: Path, text: str, age_seconds: int, verdict: str) -> None:
    """That its communicators stood is no work; the reason of the slow transport stands beside the verdict."""
    log.write_text(text)
    os.utime(log, (time.time() - age_seconds,) * 2)
    answer = answer_from([str(log)])

    assert answer.verdict == verdict
    assert "talk over TCP" in " ".join(answer.notes)
    assert "infiniband" in " ".join(answer.notes), "the next step, too"


def test_of_an_old_log_it_is_not_said_that_the_job_still_works(log: Path) -> None:
    """It worked, slowly, when the log ended; what came of it is not known."""
    log.write_text(NO_LIBRARY + SOCKET.format(0, "eth0") + CHANNEL.format("Socket/0") + WORKS)
    os.utime(log, (time.time() - 7200,) * 2)
    answer = answer_from([str(log)])

    assert answer.verdict == "slow"
    assert "no line says how it ended" in said(answer)
    assert "rdma-core" in said(answer)


@pytest.mark.parametrize(
    "channel", ["w0:41:80 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n", ""]
)
def test_jobs_on_one_node_each_are_no_job_between_nodes(tmp_path: Path, channel: str) -> None:
    """Logs of two of them in one folder; without P2P and shared memory NCCL uses the network within a node."""
    for node in (0, 1):
        text = "w0:41:80 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + SOCKET.format(0, "eth0") + channel
        (tmp_path / f"{node}.log").write_text((text + STARTED.format(8) + WORKS).replace("w0:", f"w{node}:"))

    answer = answer_from([str(tmp_path)])
    assert (answer.verdict, answer.notes) == ("clear", ())


def test_one_adapter_with_gpudirect_is_enough() -> None:
    """The adapter of the management network has none."""
    hca = "w0:41:80 [0] NCCL INFO NET/IB : GPU Direct RDMA {} for HCA {} 'mlx5_{}'\n"
    text = hca.format("Enabled", 0, 0) + hca.format("Disabled", 8, 8) + STARTED.format(32) + WORKS
    answer = answer_to(text)

    assert (answer.verdict, answer.notes) == ("clear", ())


# --- tables of nccl-tests ---


def test_two_tables_in_one_log_are_two(log: Path) -> None:
    """The second one is slower and smaller, as alltoall is after all_reduce; where it is torn, the answer says so."""
    first = HEADER + row(2**20, 400.0) + row(2**23, 480.0) + END
    second = HEADER + row(2**20, 30.0) + row(2**21, 31.0)

    assert answer_to(first + second + END).verdict == "clear"
    log.write_text(first + second)
    os.utime(log, (time.time() - 3600,) * 2)
    assert "breaks off after the row of 2,097,152 bytes" in said(answer_from([str(log)]))


def test_what_the_hardware_reported_before_wrong_values_leads() -> None:
    """An Xid of the memory is why they are wrong."""
    xid = "[1.2] NVRM: Xid (PCI:0000:1b:00): 48, pid=1, name=a, DBE (double bit error)\n"

    assert [one.line for one in answer_to(xid + HEADER + row(2**20, 9.0, wrong=3) + END).incidents] == [1, 3]


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (((2**20, 9.0), (2**24, 3.0)), "slow"),
        (((2**20, 9.0), (2**24, 3.1)), "clear"),
        (((1024, 9.0), (2048, 0.1), (2**24, 9.5)), "clear"),
        (((1024, 0.1), (2**20, 4.0), (2**24, 9.5)), "clear"),
    ],
)
def test_bandwidth_that_falls_to_a_third_as_messages_grow_is_slow(
    rows: tuple[tuple[int, float], ...], verdict: str
) -> None:
    """Only from 1 MiB on; small messages are slow everywhere."""
    answer = answer_to(HEADER + "".join(row(*one) for one in rows) + END)

    assert answer.verdict == verdict
    assert ("from 9 GB/s at 1,048,576 bytes to 3 GB/s" in said(answer)) == (verdict == "slow")


@pytest.mark.parametrize("prefix", ["", "[0]", " 0: ", "12: ", "[1,0]<stdout>:"])
def test_a_table_is_read_behind_what_launchers_put_before_it(prefix: str) -> None:
    """srun --label sets its numbers to the right."""
    table = HEADER + row(2**20, 9.0) + row(2**24, 3.0) + END
    answer = answer_to("".join(f"{prefix}{line}\n" for line in table.splitlines()))

    assert answer.verdict == "slow"


@pytest.mark.parametrize(
    ("gpu", "ranks", "busbw", "test", "verdict"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 390.0, "all_reduce_perf", "slow"),
        ("NVIDIA H100 80GB HBM3", 8, 410.0, "all_reduce_perf", "clear"),
        ("NVIDIA H100 80GB HBM3", 4, 200.0, "all_reduce_perf", "clear"),
        ("NVIDIA H100 PCIe", 8, 40.0, "all_reduce_perf", "clear"),
        ("NVIDIA H100 80GB HBM3", 8, 300.0, "reduce_scatter_perf", "clear"),
        ("NVIDIA GeForce RTX 4090", 8, 9.8, "all_reduce_perf", "clear"),
    ],
)
def test_an_all_reduce_is_compared_with_what_was_published_of_such_nodes(
    gpu: str, ranks: int, busbw: float, test: str, verdict: str
) -> None:
    """H100: 478.9 GB/s at 8 GiB, of which 85 % are 407; of other tests, GPUs and numbers of ranks nothing is known."""
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid  {rank + 10} on  node7 device {rank:2} [0x1b] {gpu}\n" for rank in range(ranks)
    )
    answer = answer_to(f"$ ./{test} -b 8G -e 8G -g 8\n# Using devices\n{devices}{HEADER}{row(2**33, busbw)}{END}")

    assert answer.verdict == verdict
    assert ("479 GB/s were published" in said(answer)) == (verdict == "slow")


@pytest.mark.parametrize(
    ("hosts", "size", "busbw", "verdict"),
    [
        (2, 2**26, 1.9, "slow"),
        (2, 2**26, 2.0, "clear"),
        (2, 2**25, 1.9, "clear"),
        (1, 2**26, 1.9, "clear"),
        (2, 2**26, 0.0, "clear"),
    ],
)
def test_a_test_between_nodes_at_the_rate_of_ethernet_is_slow(
    hosts: int, size: int, busbw: float, verdict: str
) -> None:
    """Below 2 GB/s from 64 MiB on; a rank alone has no bandwidth at all."""
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid  {rank + 10} on  node{rank % hosts} device  0 [0x1b] AMD Instinct MI300X\n"
        for rank in range(2)
    )
    answer = answer_to(f"# Using devices\n{devices}{HEADER}{row(size, busbw)}{END}")

    assert answer.verdict == verdict
    assert ("between 2 nodes" in said(answer)) == (verdict == "slow")


def test_a_table_that_only_began_is_unknown() -> None:
    """The header of old versions has a column of errors."""
    assert answer_to("# size count type redop time algbw busbw  error time algbw busbw  error\n").verdict == "unknown"


@pytest.mark.parametrize(
    "table",
    [
        HEADER + row(2**20, 9.0, wrong=262110) + END,
        HEADER + row(2**20, 9.0) + "# Out of bounds values : 50 FAILED\n# Avg bus bandwidth    : 4.61\n",
    ],
)
def test_wrong_values_are_damaged_data(table: str) -> None:
    """In a row, or only at the end."""
    answer = answer_to(table)

    assert answer.verdict == "trouble"
    assert "wrong values" in answer.incidents[0].happened
    assert "NCCL_P2P_DISABLE=1" in answer.incidents[0].next_step


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[ 9.3] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus\n", "Xid 79 of 0000:44:00.0"),
        ("RuntimeError: CUDA error: the launch timed out and was terminated\n", "a GPU with a display"),
        ("n1:1:2 [0] enqueue.cc:1 NCCL WARN Cuda failure 'unspecified launch failure'\n", "touched memory"),
    ],
)
def test_what_nvidia_says_is_nvidias_beside_lines_of_amd(line: str, words: str) -> None:
    """A CPU with graphics has lines of amdgpu, and programs for both name ROCm."""
    answer = answer_to("[ 5.1] amdgpu: Topology: Add CPU node\nINFO ROCm is not available\n" + line)

    assert words in answer.incidents[0].happened
    assert "amdgpu" not in answer.incidents[0].next_step


def test_a_table_without_an_end_is_named(log: Path) -> None:
    """What stopped it is not known."""
    log.write_text(HEADER + row(2**20, 9.0) + row(2**21, 9.1))
    os.utime(log, (time.time() - 3600,) * 2)
    answer = answer_from([str(log)])

    assert answer.verdict == "unknown"
    assert "breaks off after the row of 2,097,152 bytes" in said(answer)


# --- whatever the file is ---


def test_a_log_that_was_packed_or_coloured_is_read(tmp_path: Path) -> None:
    """With gzip, whole or cut; with the colours of a terminal."""
    text = "\x1b[36m(Worker pid=7)\x1b[0m \x1b[31mRuntimeError: CUDA error: invalid device ordinal\x1b[0m\n"
    packed = gzip.compress(text.encode() + os.urandom(100_000))
    for name, content in (("a.log", text.encode()), ("b.gz", packed), ("c.gz", packed[:-50_000])):
        (tmp_path / name).write_bytes(content)
        (incident,) = answer_from([str(tmp_path / name)]).incidents
        assert incident.category == "usage", name


def test_a_log_packed_with_zstd_is_read_by_the_program_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the open file as its input, whatever the name; the first one that is installed is taken."""
    program = tmp_path / "zstd"
    program.write_text("#!/bin/sh\nexec /usr/bin/tail -c +5\n")
    program.chmod(0o755)
    monkeypatch.setattr(reading, "ZSTD_PROGRAMS", (str(tmp_path / "none"), str(program)))
    packed = tmp_path / "-rf a job.zst"
    packed.write_bytes(b"\x28\xb5\x2f\xfd" + CUDA.format("invalid device ordinal").encode())
    (incident,) = answer_from([str(packed)]).incidents

    assert incident.category == "usage"


def test_logs_are_read_for_a_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may hold any number of bytes. No errors are never said to be found in what was not read."""
    seconds = itertools.count(step=reading.MOST_SECONDS / 3)
    monkeypatch.setattr(
        reading, "time", SimpleNamespace(monotonic=seconds.__next__, time=time.time, gmtime=time.gmtime)
    )  # fmt: skip
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"step 100 loss 2.3\n" * 1_000_000))
    (tmp_path / "b.log").write_text(CUDA.format("invalid device ordinal"))
    answer = answer_from([str(tmp_path / "a.gz"), str(tmp_path / "b.log")])

    assert 0 < answer.logs[0].lines < 1_000_000
    assert [(one.is_cut, one.told) for one in answer.logs] == [(True, 0), (True, 0)]
    assert answer.verdict == "unknown"
    assert f"{tmp_path}/b.log: read up to line 0 only; the time for reading was over" in said(answer)
    assert "shows work, but not all was read" in said(answer)


def test_what_cannot_be_unpacked_is_refused_with_what_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, where zstd is not installed."""
    monkeypatch.setattr(reading, "ZSTD_PROGRAMS", ())
    (tmp_path / "a job.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(UsageError, match=r"where it is: zstd -dc '.*/a job\.zst' \| commwatch diagnose --log -; name"):
        answer_from([str(tmp_path / "a job.zst")])


def test_what_only_begins_like_a_packed_file_hides_no_other_log(tmp_path: Path) -> None:
    """Anybody may leave a file in the folder of a job's logs; named alone, what was meant for gzip is read as text."""
    (tmp_path / "a.log").write_text(CUDA.format("invalid device ordinal"))
    (tmp_path / "b.log").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    (tmp_path / "c.log").write_bytes(b"\x1f\x8b no gzip\n" + CUDA.format("invalid device ordinal").encode())

    assert [one.category for one in answer_from([str(tmp_path)]).incidents] == ["usage"]
    assert [one.category for one in answer_from([str(tmp_path / "c.log")]).incidents] == ["usage"]
