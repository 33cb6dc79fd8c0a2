"""One record of each kind that a daemon or a command keeps in the state directory; each makes sense."""

from __future__ import annotations

from commwatch.cluster.check_report import CheckReport
from commwatch.cluster.messages import Unreachable
from commwatch.cluster.node_record import Named, NodeHistory
from commwatch.cluster.node_report import NodeReport, RailResult, Suspicion
from commwatch.jobs.logs.counts import Incident, NcclLogCountsState
from commwatch.jobs.logs.tracker import JobLogsState
from commwatch.node.inventory_state import GpuRecord, InventoryState, Learned
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix, Suspect
from commwatch.node.wrap import Wrapped, WrapsState
from commwatch.probes.by_hand.trial import SettingGain, SettingTrial, SettingTrials
from commwatch.probes.gate.budget import Occupied
from commwatch.probes.results.baseline import Baseline
from commwatch.probes.results.drift import Course
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.history import (
    Conditions,
    CopyRate,
    GpuName,
    LastResult,
    ProbeHistory,
    ScalingRate,
    SlowestRank,
)
from commwatch.probes.results.learned import LearnedRate
from commwatch.probes.results.pair_record import PairHistory
from commwatch.probes.results.streak import Streak
from commwatch.readings import LogErrors

NOW = 1_767_261_600.0
SLOW = Suspicion(kind="nic", element="mlx5_0", fault="bandwidth", direction="out", ratio=0.5)
GPUS = [GpuRecord(number, f"0000:{number}0:00.0", "H100", presence=Learned(1.0)) for number in (1, 2)]
MATRIX = PairMatrix(
    taken_at=NOW, backend="nccl", latency_bytes=8, bandwidth_bytes=2**26,
    endpoints=(PairEndpoint(label="0"), PairEndpoint(label="1")),
    cells=(PairCell(source=0, destination=1, latency_seconds=9e-6, bandwidth=4e10), PairCell(source=1, destination=0)),
    suspects=(Suspect(kind="pair", element="GPU0-GPU1", confidence=0.9, slowdown=2.0, cells=((0, 1),), words="slow"),),
)  # fmt: skip
CONDITIONS = Conditions("all_reduce", 8, 2**26, 2, "2.30.7", slots=("0000:10:00.0",))
LAST = LastResult(
    finished_at=NOW, setup_seconds=1.0, latency_seconds=1e-5, bus_bandwidth=4e11,
    expected=Expected(4.5e11, "reference", "published"), balance=0.98, slowest=SlowestRank(1, "0000:10:00.0"),
    scaling=(ScalingRate(2, 4e11, 0.1), ScalingRate(4, 3e11, 0.2)),
    copies=(CopyRate(GpuName("0", "0000:10:00.0"), "host_to_device", 5e10, 5.5e10),),
)  # fmt: skip
COURSE = Course((1e-5, 1.1e-5), (1e-5, 1.1e-5), NOW, Baseline(1e-5, 1e-7))
PROBED = {
    "backend": "nccl", "conditions": CONDITIONS, "courses": {"latency": COURSE}, "latency_streak": Streak(2, NOW),
    "latency_judged_at": NOW, "latency_mark": 1e-4, "learned": {"all_reduce H100": LearnedRate(NOW, (4e11,))},
    "last": LAST, "last_completion_at": NOW, "occupied": [Occupied(NOW, 12.0)],
}  # fmt: skip
HISTORY = ProbeHistory(**PROBED)  # type: ignore[arg-type]
PAIRS = PairHistory(**PROBED, matrices=[MATRIX], good=(MATRIX,))  # type: ignore[arg-type]
INVENTORY = InventoryState(
    {"GPU-1": GPUS[0], "GPU-2": GPUS[1]}, {"eth0": Learned(5e10, 1e11, 60.0)}, {"mlx5_0:1": Learned(5e10)}
)
WRAPS = WrapsState(
    "boot", {"rdma": {"mlx5_0:1": [Wrapped(("commwatch_rdma_out_of_sequence_total", ("mlx5_0", "1")), 7, 2**32)]}}
)
LOGS = JobLogsState(
    NcclLogCountsState(
        {"ib": 3},
        {"ib": 1},
        {"mlx5_0": 3},
        [0, 1],
        Incident(NOW, [LogErrors("network", True, 3, "/job.log", "it broke")], {1}),
    ),
    resume='{"names":["/job.log"],"looked":1.0,"files":{"1:2":[17,99,false]}}',
)
CLUSTER = NodeHistory(
    NodeReport(run="0" * 32, finished_at=NOW, outcome="completed", nodes=4, suspicions=(SLOW,),
               rails=(RailResult(rail=0, device="mlx5_0", sent=4e10),)),
    (Named(SLOW, 2),), {"completed": 3}, {}, 12.0, (("0" * 32, NOW),),
    CheckReport(run="1" * 32, finished_at=NOW, outcome="completed", causes=("mtu",),
                unreachable=(Unreachable(port_kind="ephemeral", direction="in", peers=3),)),
    {"mtu": 1},
)  # fmt: skip
TRIALS = SettingTrials((
    SettingTrial(settings={"NCCL_ALGO": "Ring"}, taken_at=NOW, nccl_version="2.30.7", gains=(
        SettingGain(probe="all_reduce", operation="all_reduce", purpose="latency", size_bytes=8, ranks=2,
                    without_seconds=1e-5, with_seconds=1e-5, gain_percent=0.0, word="same"),)),
))  # fmt: skip
