"""Lines of NCCL and torch: their shapes over the versions, their categories, and the first culprit among them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.jobs.logs.categories import PRECEDENCE, SIDES, Category
from commwatch.probes.cycle.nccl_notes import category_of
from support.examples import examples
from support.logs import answer_to, causes
from support.passes import in_one_pass

OLD = "node1:41:77 [0] transport/net_ib.cc:1296 NCCL WARN "
DATED = "[2026-03-02 12:11:38] node1:41:77 [1] transport/net_ib.cc:2453 NCCL WARN "
NAMED = "[2026-09-09 10:46:33] node1:41:77 [1] transport/net_ib/p2p.cc:648 (ncclIbTest) NCCL WARN "
PREFIXES = (OLD, DATED, NAMED)

WARNINGS: tuple[tuple[Category, str], ...] = (
    ("ib_retry", "NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129"),
    ("ib_retry", "NET/IB: Got completion from peer 10.2.0.5<5> with status=12 opcode=129 len=524288 vendor err 129"),
    (
        "ib_retry",
        "NET/IB: Got completion from peer 10.153.235.13<40554> with status=IBV_WC_RETRY_EXC_ERR(12) "
        "opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 localGid ::ffff:1.1.2.2 hca mlx5_1",
    ),
    (
        "ib_retry",
        "NET/IB/GIN: Got completion from peer 10.0.0.4<9> with status=12 opcode=1 len=8 vendor err 129 (Send)",
    ),
    ("ib_rnr", "NET/IB : Got completion from peer 10.2.0.5<33092> with error 13, opcode 0, len 0, vendor err 135"),
    (
        "ib_local_prot",
        "NET/IB: Got completion from peer node20<57713> with status=4 opcode=0 len=0 vendor err 81 (Send)",
    ),
    (
        "ib_remote_access",
        "NET/IB : Got completion from peer 10.1.3.201<33057> with status=9 opcode=0 len=0 vendor err 138",
    ),
    (
        "ib_remote_access",
        "NET/IB: Got completion from peer 10.1.3.2<1> with status=IBV_WC_REM_ACCESS_ERR(10) opcode=IBV_WC_SEND(0) "
        "vendor_err=136",
    ),
    ("ib_flush", "NET/IB: Got completion from peer 10.1.3.2<1> with status=5 opcode=0 len=0 vendor err 249 (Recv)"),
    ("ib_other", "NET/IB: Got completion from peer 10.1.3.2<1> with status=1 opcode=0 len=0 vendor err 104 (Recv)"),
    ("ib_other", "NET/IB: ncclIbTest: Got CQE with error (devIndex=0, req=0x7fccfc04e028, comm=0x7fccfc04e000 (recv))"),
    (
        "ib_retry",
        "NET/IB: ncclIbTest: Got completion with error (devIndex=0, wc->status=(IBV_WC_RETRY_EXC_ERR)12, "
        "wc->opcode=(IBV_WC_SEND)0, wc->wr_id=0, wc->qp_num=5, wc->byte_len=0)",
    ),
    ("ib_async", "NET/IB: mlx5: GID table changed on mlx5_1:1"),
    ("ib_async", "NET/IB : mlx5_1:1 unknown event type (21)"),
    ("ib_async", "NET/IB : Got async event : port error"),
    ("ib_async", "NET/IB : mlx5_0:1 Got async event : local access violation work queue error"),
    ("ib_async", "NET/IB : mlx5_1:1 Got async error event: port error"),
    ("ib_async", "NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)"),
    ("ib_async", "NET/IB : mlx5_1:1 async fatal event: local catastrophic error"),
    ("ib_async", "NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): invalid request local work queue error"),
    ("ib_async", "Call to ibv_get_async_event failed"),
    ("ib_setup", "Call to ibv_modify_qp failed with error Connection timed out errno 110"),
    (
        "ib_setup",
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f1:1, local GID ::ffff:1.2.3.4",
    ),
    ("ib_setup", "Call to ibv_reg_mr failed"),
    ("ib_setup", "Call to ibv_create_qp failed with error Cannot allocate memory"),
    ("socket", "Net : Connect to 10.0.0.7<40003> failed : Connection refused"),
    ("socket", "socketStartConnect: Connect to 172.17.0.2<37485> failed : Software caused connection abort"),
    (
        "socket",
        "socketPollConnect: connect to 10.0.0.7<1> returned Connection timed out, exceeded error retry count (35)",
    ),
    ("socket", "Call to recv from 10.0.0.7<46311> failed : Connection reset by peer"),
    ("socket", "socketFinalizeAccept from 10.9.9.9<51000>: wrong type 1919117645 != 3"),
    ("no_interface", "Bootstrap : no socket interface found"),
    ("no_interface", "NET/ND : no socket interface found for out-of-band connections"),
    ("no_interface", "NET/IB : No IP interface found."),
    ("no_interface", "NET/Socket : No usable listening interface found"),
    ("shm", "Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes"),
    ("shm", "Error: failed to extend /dev/shm/nccl-3 to 9637892 bytes, error: No space left on device (28)"),
    ("shm", "Error while creating shared memory segment /dev/shm/nccl-UbzKZ9 (size 9637888)"),
    (
        "nvls",
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'.",
    ),
    ("nvls", "Cuda failure 802 'system not yet initialized'"),
    (
        "mnnvl",
        "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration "
        "(/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.",
    ),
    ("p2p", "failed to peer with device 1(=3d000): 711 peer access is not supported between these two devices"),
    ("p2p", "failed to open CUDA IPC handle : 205 mapping of buffer object failed"),
    ("oom", "Cuda failure 'out of memory'"),
    ("oom", "Cuda failure 2 'out of memory'"),
    ("cuda", "Cuda failure 719 'unspecified launch failure'"),
    ("version", "NCCL version mismatch with remote peer node2<1> (local: 22907, remote 22005)"),
    ("version", "Mismatched NCCL version detected : rank 1 version 22907 rank 0 version 22005"),
    ("dup_gpu", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"),
    ("dup_gpu", "Multiple ranks are using the same GPU. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow this"),
    ("no_algo", "Error : no algorithm/protocol available"),
    ("no_algo", "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8"),
    ("no_algo", "No algorithm/protocol nor symKernelId available for function AllGather with datatype ncclInt8."),
    ("mismatch", "NET/IB : req 0/1 tag 3 peer 10.0.0.1<2> collective mismatch error, local size 8 remote size 16"),
    ("mismatch", "NET/Socket : peer 10.0.0.1<2> message truncated : receiving 1048576 bytes instead of 8192. If you"),
    ("mismatch", "Message truncated : received 1024 bytes instead of 256"),
    ("mismatch", "NET/Socket : message truncated : receiving 1048576 bytes instead of 8192"),
    ("ib_setup", "NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument"),
    ("ib_setup", "NET/IB : Remote IB device is incompatible with the local [0]mlx5_0:1/RoCE."),
    ("ib_setup", "NET/OFI Unable to find a protocol that worked.  Failing initialization."),
    ("ib_setup", "NET/OFI aws-ofi-nccl initialization failed"),
    ("ib_setup", "NET/OFI OFI fi_getinfo() call failed: No data available"),
    ("ib_setup", "Call to ibv_modify_qp failed with error Network is unreachable"),
    ("socket", "socketPollConnect poll() returned 1, no POLLOUT events"),
    (
        "socket",
        "socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno 115(Operation now in",
    ),
    ("remote", "Socket recv failed while polling for opId=0x7fb582222f90"),
    ("teardown", "[Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2"),
    ("teardown", "Proxy Call to rank 1 failed (Connect)"),
    (
        "ib_retry",
        "NET/IBP:Got completion from peer 7.6.13.83<36315> with status=12 opcode=32698 len=32696 vendor err 129",
    ),
    (
        "shm_gone",
        "Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file or",
    ),
    ("ib_setup", "NET/OFI Unable to register memory (type = 2) for device 0. RC: -22, Error: Invalid argument"),
    ("mismatch", "Mismatched collective detected, please check your collective calls at and around rank 39."),
    ("usage", "Bootstrap Root : rank 1 of 8 ranks has already checked in"),
    ("p2p", "Cuda failure 'peer access is not supported between these two devices'"),
    ("usage", "AllReduce : invalid root 9 (root should be in the 0..1 range)"),
    ("usage", "AllReduce : sendbuff allocated on device 1 mismatchs with NCCL device 0"),
    ("usage", "Broadcast : sendbuff is not a valid pointer"),
    ("remote", "socketProgress: Connection closed by remote peer node2<40000>"),
    ("teardown", "Call to send to 10.0.0.7<46311> failed : Broken pipe"),
    ("teardown", "Cuda failure 4 'driver shutting down'"),
    ("other", "Failed to find reverse path from remNode 0/5f000 nlinks 4 to node 0/cb000"),
    ("other", "A text that no rule knows"),
)

MESSAGES_OF_TORCH: tuple[tuple[Category, str], ...] = (
    (
        "timeout",
        "[rank1]:[E810 03:04:11.061 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 ms",
    ),
    (
        "timeout",
        "torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients. 1/2 clients joined.",
    ),
    ("timeout", "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation"),
    ("cuda", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
    ("pcie", "pcieport 0000:16:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
    ("limit", "OSError: [Errno 24] Too many open files: '/data/shard-00017'"),
    ("unreachable", "node2: Host key verification failed."),
    ("oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB."),
    ("oom", "RuntimeError: CUDA error: out of memory"),
    (
        "oom",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.",
    ),
    (
        "shm",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's",
    ),
    ("timeout", "[c10d] The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)."),
    ("remote", "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:7443"),
    ("remote", "RuntimeError: Connection closed by peer [10.0.0.4]:7443"),
    ("shm", "(Runner pid=7) Error while creating shared memory segment /dev/shm/nccl-UmqSM9 (size 7340384)"),
    ("no_interface", "ncclSocketInit: connecting to address with family 0 is neither AF_INET(2) nor AF_INET6(10)"),
    ("ib_setup", "Failed to modify QP 6814 to RTR"),
    ("usage", "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."),
    ("mismatch", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: X"),
    ("crash", "Fatal Python error: Segmentation fault"),
    (
        "crash",
        "[node1:815  :0:815] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))",
    ),
    ("crash", "[rank3]: KeyError: 'labels'"),
    ("crash", "3: ValueError: expected 4 columns"),
    ("crash", "AssertionError"),
    ("oom", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=42.batch"),
    ("killed", "/usr/bin/entrypoint.sh: line 8:     1 Killed python -m train"),
    ("killed", "  traceback : Signal 9 (SIGKILL) received by PID 36071"),
    ("killed", "[ERROR] [launch.py:321:sigkill_handler] ['python', '-u', 'train.py'] exits with return code = -9"),
    ("crash", "api.py:882] failed (exitcode: -11) local_rank: 0 (pid: 33042) of binary: /usr/bin/python3"),
    ("cancelled", "slurmstepd: error: *** STEP 41.0 ON n3 CANCELLED AT 2026-04-20T09:09:37 DUE TO TIME LIMIT ***"),
    ("cancelled", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 8665 got signal: 1"),
    ("cuda", "[14328.198504] NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus"),
    ("cuda", "amdgpu 0000:dd:00.0: amdgpu: GPU reset begin!"),
    ("timeout", "DistBackendError: [4] is setting up NCCL communicator: store->get('0') got error: Socket Timeout"),
    ("socket", "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error"),
    (
        "cuda",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error, NCCL version 2.21.5",
    ),
    (
        "other",
        "NCCL error in: ../torch/NCCLUtils.hpp:275, unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
    ("other", "ncclInternalError: Internal check failed."),
    ("usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    (
        "remote",
        "[PG ID 0 PG GUID 0(default_pg) Rank 1]  Process group watchdog thread terminated with exception: "
        "NCCL error: remote process exited or there was a network error, NCCL version 2.27.3",
    ),
    ("teardown", '[rank3] Failed to check the "should dump" flag on TCPStore, with error: Broken pipe'),
    ("teardown", "[W ProcessGroupNCCL] recvValue failed on SocketImpl(fd=33, addr=[localhost]:55846): Failed to recv"),
    ("teardown", "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"),
)

ORDINARY = (
    "node1:1799:1799 [4] NCCL INFO NET/OFI Tuner init: comm with 8 ranks and 1 nodes.",
    "node1:1799:1799 [4] NCCL INFO NCCL_IB_HCA set to mlx5_0",
    "node1:1:1 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7",
    "node1:1:1 [0] NCCL INFO Call to connect returned Connection refused, retrying",
    "node1:1:1 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, retrying 1/2 after 4 msec",
    "node1:1:1 [0] NCCL INFO transport/net.cc:1134 -> 6",
    "node1:41 NCCL DIAG checking 8 GPUs",
    "node1:41:41 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "node1:41:41 [0] misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='') : ",
    "algo-1:46:58 [0] configure_nvls_option:287 NCCL WARN NET/OFI Could not find ncclGetVersion symbol",
    "node1:41:41 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port active",
    "node1:41:41 [0] net_ib.cc:155 NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: client reregistration(17)",
    "node1:4:4 [7] sharp_plugin.c:320 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)",
    "node1:4:4 [0] transport.cc:323 NCCL WARN Cannot initialize CollNet, using point-to-point network instead",
    "NCCL version 2.29.7+cuda12.9",
    "step 812 loss 1.83, connection refused by the metrics server",
    "loading /dev/shm/cache, Cuda failure rates are discussed in the manual",
    "WARNING:root:caught KeyError: 'labels', going on without",
    "srun: Job step created, signal 15 will be sent 30 s before the end",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 97 - Address family "
    "not supported by protocol).",
    "",
)


@in_one_pass("category, message", WARNINGS)
def test_a_warning_has_its_category_in_the_wording_of_every_version(category: Category, message: str) -> None:
    """The text decides, whatever the line begins with, and with a launcher's own text before it."""
    lines = [f"{launcher}{one}{message}\n" for one in PREFIXES for launcher in ("", "1: (Worker pid=9, ip=10.0.0.1) ")]
    incidents = answer_to("".join(lines)).incidents  # one a day

    assert sum((Counter(one.counts) for one in incidents), Counter()) == {category: 6}
    assert {(one.certain, one.hosts) for one in incidents} == {(True, ("node1",))}


@in_one_pass("category, message", MESSAGES_OF_TORCH)
def test_a_message_of_torch_has_its_category(category: Category, message: str) -> None:
    """Torch writes no NCCL prefix; its own texts are enough, in a file with lines of all kinds."""
    (incident,) = answer_to(f"step 1 loss 1.83\r{message}\nstep 2 data\n").incidents

    assert (incident.category, incident.counts) == (category, {category: 1})


@in_one_pass("line", ORDINARY)
def test_an_ordinary_line_says_nothing(line: str) -> None:
    """INFO lines about retries, and lines of the program, are no failures."""
    (log,) = answer_to(f"{line}\n{OLD}Cuda failure 719 'unspecified launch failure'\n").logs

    assert log.told == 1
    assert "connection refused" in line or causes(f"{line}\nstep 812 loss 1.83\n") == []


@in_one_pass("prefix", ["", "[rank3]: ", "worker-1: ", "[trainer0|0]:"])
def test_the_line_after_last_error_belongs_to_it(prefix: str) -> None:
    """An error of torch carries NCCL's last warning, without what stands before a warning in NCCL's own log."""
    text = f"step 1\n{prefix}Last error:\n{prefix}{{}}\nstep 2\n"

    assert causes(text.format("Failed to bind NVLink SHARP (NVLS) memory of size 20")) == ["nvls"]
    assert causes(text.format("what no rule knows") + "step 3 loss 1.83\n") == []


def test_every_category_has_a_line_here_and_a_side() -> None:
    """None is left untested, and the sides are the bounded ones."""
    tested = {category for category, _ in (*WARNINGS, *MESSAGES_OF_TORCH)}

    assert tested == set(get_args(Category)) - {"waiting"}, "which only a log without trouble is asked for"
    assert set(SIDES) == set(get_args(Category))
    assert {one for group in PRECEDENCE for one in group} == {
        one for one, side in SIDES.items() if side not in {"symptom", "unknown"}
    }


@in_one_pass(
    "line, host, text, began",
    [
        (OLD, "node1", "transport/net_ib.cc:1296 ", None),
        (DATED, "node1", "transport/net_ib.cc:2453 ", 1_772_453_498.0),
        (NAMED, "node1", "transport/net_ib/p2p.cc:648 ", 1_788_950_793.0),
        ("<stdout>: gpu-7.example.org:815:864 [-1] a.cc:1 NCCL WARN ", "gpu-7.example.org", "a.cc:1 ", None),
        ("something else NCCL WARN ", "", "", None),
        # A source file, a function of a plugin, the end of a declaration or the number of a process is no host.
        ("misc/socket.cc:71 NCCL WARN ", "", "misc/socket.cc:71 ", None),
        ("[0] misc/socket.cc:71 NCCL WARN ", "", "misc/socket.cc:71 ", None),
        ("register_mr_buffers:544 NCCL WARN ", "", "register_mr_buffers:544 ", None),
        ("f(unsigned long, uint16_t):12 NCCL WARN ", "", "", None),
        ("4711:4712 [0] misc/socket.cc:71 NCCL WARN ", "", "misc/socket.cc:71 ", None),
    ],
)
def test_a_line_is_taken_apart(line: str, host: str, text: str, began: float | None) -> None:
    """Each shape gives what it holds, and what it lacks stays empty."""
    (incident,) = answer_to(f"{line}Call to recv failed").incidents

    assert (incident.hosts, incident.began) == ((host,) * bool(host), began)
    assert incident.text == f"{text}NCCL WARN Call to recv failed"


RECORDED = {
    "2.19.3": (
        "node1:9980:9980 [32643] NCCL INFO NCCL_SOCKET_IFNAME set by environment to nope",
        "node1:9980:9980 [32643] bootstrap.cc:48 NCCL WARN Bootstrap : no socket interface found",
        "node1:9980:9980 [32764] NCCL INFO init.cc:103 -> 3",
    ),
    "2.27.5": (
        "node1:9989:9989 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to nope",
        "[2026-11-21 12:00:48] node1:9989:9989 [0] bootstrap.cc:115 NCCL WARN Bootstrap : no socket interface found",
        "node1:9989:9989 [0] NCCL INFO init.cc:100 -> 5",
    ),
    "2.32.3": (
        "node1:10007:10007 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to nope",
        "[2026-11-21 12:00:48] node1:10007:10007 [0] bootstrap.cc:129 (bootstrapNetInit) NCCL WARN "
        "Bootstrap : no socket interface found",
        "node1:10007:10007 [0] NCCL INFO init.cc:211 (ncclGetUniqueId) -> 5",
    ),
}
"""What the library wrote on a host without a GPU, asked for an identity with a wrong NCCL_SOCKET_IFNAME."""


@in_one_pass("version", RECORDED)
def test_recorded_lines_are_read(version: str) -> None:
    """Three lines of the real library: a setting, a warning, and a trail that says nothing by itself."""
    (incident,) = answer_to("\n".join(RECORDED[version])).incidents

    assert (incident.counts, incident.hosts, incident.line) == ({"no_interface": 1}, ("node1",), 2)
    assert incident.text.startswith("bootstrap.cc:")


def test_of_two_lines_in_one_the_warning_counts() -> None:
    """Processes that share an output write into each other's lines."""
    line = f"node1:1:2 [0] NCCL INFO Channel 00/24{OLD}Cuda failure 'unknown error'"

    assert causes(line) == ["cuda"]
    assert causes(line.replace("NCCL WARN", "NCCL INFO") + "\nstep 1 loss 1.83\n") == []


def test_a_cuda_failure_where_multicast_is_set_up_is_nvls() -> None:
    """Older versions give no other text; the source file says where the call failed."""
    line = "n1:1:2 [0] transport/{}.cc:169 NCCL WARN Cuda failure 1 'invalid argument'"

    assert [causes(line.format(source)) for source in ("nvls", "net")] == [["nvls"], ["cuda"]]


PRECEDENCES: tuple[tuple[Category, tuple[str, ...]], ...] = (
    ("cuda", ("timeout", "ib_retry", "ib_async", "cuda")),
    ("ib_async", ("ib_retry", "ib_async", "socket")),
    ("ib_retry", ("ib_other", "ib_retry", "nvls")),
    ("ib_rnr", ("ib_rnr", "ib_retry")),
    ("nvls", ("socket", "nvls", "p2p")),
    ("socket", ("shm", "socket")),
    ("oom", ("oom", "ib_retry", "socket")),
    ("timeout", ("timeout", "cancelled", "teardown")),
    ("crash", ("timeout", "crash", "socket", "ib_retry")),
    ("ib_retry", ("ib_retry", "socket", "crash")),
    ("ib_async", ("crash", "ib_async", "ib_retry")),
    ("socket", ("teardown", "socket", "crash", "oom")),
    ("crash", ("timeout", "remote", "crash")),
    ("shm", ("mismatch", "shm")),
    ("mismatch", ("other", "mismatch", "remote")),
    ("other", ("timeout", "other")),
    ("timeout", ("teardown", "timeout", "remote")),
    ("ib_flush", ("ib_flush", "remote")),
    ("socket", ("killed", "socket")),
    ("killed", ("killed", "timeout")),
    ("cancelled", ("cancelled", "socket")),
    ("cuda", ("oom", "cuda")),
    ("cancelled", ("cancelled", "killed")),
    ("killed", ("killed", "cancelled")),
    ("oom", ("cancelled", "killed", "out of memory, certainly")),
    ("mnnvl", ("CUDA 800", "mnnvl")),
    ("nvls", ("CUDA 800", "nvls")),
    ("cuda", ("CUDA 800",)),
)


LINE_OF: dict[str, str] = {
    **{category: OLD + message for category, message in reversed(WARNINGS)},
    **{category: message for category, message in reversed(MESSAGES_OF_TORCH) if category not in dict(WARNINGS)},
    "crash": "AssertionError",
    "socket": OLD + "Net : Connect to 10.0.0.7<40003> failed : Connection refused",
    "timeout": "[Rank 1] Watchdog caught collective operation timeout: ran for 600011 milliseconds before timing out.",
    "out of memory, certainly": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB.",
    "CUDA 800": OLD + "Cuda failure 800 'operation not permitted'",
    "status of CUDA": "ncclUnhandledCudaError: Call to CUDA function failed.",
}
"""By category, or by what it is."""


def first_of(seen: Sequence[str]) -> str:
    (incident,) = answer_to("".join(f"{LINE_OF[one]}\n" for one in seen)).incidents
    return incident.category


@in_one_pass("first, seen", PRECEDENCES)
def test_the_likelier_cause_comes_first(first: Category, seen: tuple[str, ...]) -> None:
    """The order of likelihood: hardware, network, configuration, program, symptoms.

    Only what came before the connections broke can have broken them; a status that says nothing is no ending. What is
    killed after the job was cancelled was killed by the scheduler, what was killed before may be why it was cancelled,
    and what had no memory left always is. CUDA's 800 beside a line about MNNVL or NVLS is no fault of the GPU.
    """
    assert first_of(seen) == first


def test_a_sign_of_an_end_is_no_error_by_itself() -> None:
    """A job that goes on may write it too; where nothing else is reported it is why."""
    for line in (
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "srun: error: n3: task 0: Exited with exit code 1",
        "[W socket.cpp:752] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - refused).",
    ):
        assert len(causes(line)) == 1
        assert causes(f"{line}\n{LINE_OF['cuda']}\n") == ["cuda"]
    assert causes("Error rate on the test set: 12.1 %\nstep 1 loss 1.83\n") == []


def test_a_status_names_no_cause_where_another_line_does() -> None:
    """An error of torch carries the status first and NCCL's last warning below it."""
    text = (
        "NCCL error in: /pytorch/c10d/NCCLUtils.cpp:93, unhandled cuda error, NCCL version 2.29.7\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'.\n"
        "This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches."
    )

    assert category_of(text) == "nvls"
    assert category_of(text.replace("\n", "; ")) == "nvls"
    assert category_of(text.partition("Last error")[0]) == "cuda"
    unknown = "n1:1:2 [0] graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found\n"
    assert category_of(text.partition("Last error")[0] + unknown) == "other"


def test_a_status_that_says_nothing_comes_after_a_symptom() -> None:
    """An internal error that follows from a peer's end is told as that; by itself it is an unknown one."""
    status = "NCCL error in: a.cpp:93, internal error - please report this issue"

    assert category_of(status) == "other"
    assert category_of(f"{status}\nLast error:\nConnection closed by remote peer node2<1>") == "remote"


def test_the_last_warning_in_an_error_needs_no_prefix() -> None:
    """Only in the text of an error: in a job's log such a line may be anybody's."""
    text = "ncclSystemError: System call failed.\nLast error:\nsocketStartConnect: Connect to 172.17.0.2<3> failed : x"

    assert category_of(text) == "socket"
    assert causes(text.splitlines()[-1] + "\nstep 1 loss 1.83\n") == []


@given(st.text())
@examples(30)
def test_any_text_is_taken(text: str) -> None:
    """Whatever a file holds, nothing is raised, and categories are the bounded ones."""
    lines = "\n".join((text, OLD + text, f"NCCL WARN {text}", f"NCCL error {text}", f"NCCL_X set to {text}"))

    assert {*causes(lines), *filter(None, [category_of(text)])} <= SIDES.keys()


@given(st.binary())
@examples(30)
def test_any_bytes_are_taken(data: bytes) -> None:
    """A file that is no log."""
    assert {*causes(OLD.encode() + data)} <= SIDES.keys()


@in_one_pass("status", [*range(25), 99, 255])
def test_every_status_of_a_completion_is_one_of_the_adapter(status: int) -> None:
    """The status decides, not the vendor's number behind it; in the three wordings alike."""
    begin = f"{OLD}NET/IB : Got completion from peer 10.0.0.1<13> with"
    lines = [
        f"{begin} error {status}, opcode 0, len 0, vendor err {vendor}\n"
        f"{begin} status={status} opcode=12 len=5 vendor err {vendor}\n"
        f"{begin} status=IBV_WC_X_ERR({status}) opcode=IBV_WC_SEND({vendor % 256}) vendor_err={vendor}\n"
        for vendor in (0, 12, 129)
    ]
    (incident,) = answer_to("".join(lines)).incidents

    ((category, count),) = incident.counts.items()
    assert (category[:3], count) == ("ib_", 9)


HOSTILE = (
    "a:1 " * 500_000,
    "NCCL error " * 100_000,
    OLD + "connect to " * 100_000,
    OLD + "Got completion from peer error=" * 100_000,
    "[" * 10_000 + "0" * 1_000_000 + " NCCL WARN x",
    (":1:1 [0] (" * 5_000 + "NCCL WARN ") * 20,
    "NCCL WARN " * 200_000,
    "\x00" * 1_000_000,
    ("error " + "0" * 4_000 + "\n") * 200,
)


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_takes_no_time(line: str) -> None:
    started = time.process_time()
    causes(line)
    category_of(line)

    assert time.process_time() - started < 5, "a search that runs away takes minutes"
