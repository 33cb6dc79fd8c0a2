"""Scheduled probes of a simulated node with ranks as real processes: from the gate to the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias, get_args

import msgspec
import pytest

from commwatch.config.settings import DEFAULT_PROBES, Config, Duration, Probe, Probes
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import load_thresholds
from commwatch.node import gpus_now
from commwatch.node.gpus_now import GPU_COLLECTORS, GpusNow
from commwatch.node.starvation import Starvation
from commwatch.probes import node as probe_node
from commwatch.probes.plan import Measure
from commwatch.probes.rank_plan import Collective
from commwatch.probes.results.history import ProbeHistory
from commwatch.service.probing import Probing
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Value
from support.core import NodeReads, PlannedJobs, in_loop
from support.simulated_daemon import SimulatedDaemon, whole_node

OF_A_PAIR = ("latency_seconds", "bandwidth_bytes_per_second", "expected_bandwidth_bytes_per_second")
LAST_RESULT = (
    "probe_last_latency_seconds", "probe_last_bus_bandwidth_bytes_per_second", *(f"pair_{name}" for name in OF_A_PAIR)
)  # fmt: skip


class Node:
    """The probes of a simulated node whose GPUs are free; nothing runs unless it is told to."""

    def __init__(self, whole: SimulatedDaemon, folder: Path, *measures: Measure) -> None:
        self.jobs, self.store = PlannedJobs(), whole.store
        self._whole, self._faults = whole, folder / "faults.yaml"
        self.inject()
        own: dict[str, Probe] = {one: Probe(measure=one, latency_limit=Duration(1e-3)) for one in measures}
        probes = Probes(definitions=own or dict(DEFAULT_PROBES))
        self.probing = Probing(
            Config(probes=probes), load_thresholds(None), StateDirectory(folder), self.store, self.jobs,
            SimulationPlan(whole.preset, str(self._faults), time.time() - 600, *whole.roots),
            NodeReads(self._read, self._read),
            Starvation(Path("/nonexistent")),
        )  # fmt: skip

    async def _read(self) -> None:
        await self._whole.read(*GPU_COLLECTORS)
        self.store.occupants = {gpu.pci_bus_id: () for gpu in GpusNow(self.store).gpus()}

    def monotonic(self) -> float:
        """The clock of the readings."""
        return self._whole.time

    def time(self) -> float:
        """The wall clock, which is that of the ranks."""
        return time.time()

    def inject(self, *faults: str) -> None:
        """Only these faults, from the boot of the node on."""
        self._faults.write_text("".join(f"- {{fault: {fault}, at: 0s}}\n" for fault in faults if fault))

    def cycle(self, name: str, times: int = 1) -> None:
        for _ in range(times):
            in_loop(lambda: self.probing.run(name))

    def value(self, metric: str, *labels: str) -> Value:
        return self.store.snapshot().value(f"commwatch_{metric}", *labels)

    def counted(self, metric: str) -> dict[str, float]:
        """What was counted at all, by reason."""
        samples = self.store.snapshot().samples(f"commwatch_probe_{metric}")
        return {labels["reason"]: value for labels, value in samples if value}


Build: TypeAlias = Callable[..., Node]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Makes a node of a preset with probes of these measures, the default ones without any."""
    monkeypatch.setattr(gpus_now, "BUSY_SAMPLES_APART_SECONDS", 0.0)
    with ExitStack() as stack:

        def node(preset: str, *measures: Measure) -> Node:
            whole = stack.enter_context(whole_node(preset, tmp_path, monkeypatch))
            one = Node(whole, tmp_path, *measures)
            # After the node's own clock, and so put back before it.
            stack.enter_context(monkeypatch.context()).setattr(probe_node, "time", one)
            return one

        yield node


def test_the_default_probes_give_their_series(build: Build) -> None:
    """Each of them measures, says that it is simulated, and fails, skips and yields nothing."""
    node = build("a10x2")

    for name in DEFAULT_PROBES:
        node.cycle(name)

    snapshot = node.store.snapshot()
    attempts = {labels["probe"]: (labels["backend"], value)
                for labels, value in snapshot.samples("commwatch_probe_attempts_total")}  # fmt: skip
    assert attempts == dict.fromkeys(DEFAULT_PROBES, ("simulated", 1))
    assert [node.counted(name) for name in ("failures_total", "skips_total", "yields_total")] == [{}, {}, {}]
    known = {(name, *labels.values()) for name in LAST_RESULT for labels, _ in snapshot.samples(f"commwatch_{name}")}
    assert {("probe_last_latency_seconds", name, "simulated") for name in get_args(Collective)} <= known
    bandwidths = set(DEFAULT_PROBES) - {"pairs"}
    assert {("probe_last_bus_bandwidth_bytes_per_second", name, "simulated") for name in bandwidths} <= known
    for ends in (("0", "1"), ("1", "0")):
        assert {(f"pair_{name}", *ends, "simulated") for name in OF_A_PAIR} <= known
    copies = list(snapshot.samples("commwatch_probe_copy_bandwidth_bytes_per_second"))
    assert len(copies) == 2 * 2
    points = snapshot.samples("commwatch_probe_scaling_bus_bandwidth_bytes_per_second")
    assert [labels["ranks"] for labels, _ in points] == ["2"]
    assert sum(value for _, value in snapshot.samples("commwatch_probe_gpu_occupied_seconds_total")) > 0


def test_crashes_and_errors_are_failures_and_a_good_cycle_follows(build: Build) -> None:
    """Each with its reason; the rate of failures is what an operator sees rise."""
    node = build("a10x2", "all_reduce")

    node.inject("rank_crash, rank: 1, phase: setup")
    node.cycle("all_reduce")
    node.inject("probe_errors, share: 1, reason: nccl_error")
    node.cycle("all_reduce")
    node.inject()
    node.cycle("all_reduce")

    assert node.counted("failures_total") == {"crashed": 1, "nccl_error": 1}
    assert node.value("probe_attempts_total", "all_reduce", "simulated") == 3
    assert node.value("probe_last_latency_seconds", "all_reduce", "simulated") is not None


def test_what_is_accepted_stays_accepted_over_a_restart(build: Build, tmp_path: Path) -> None:
    """A loss that an earlier daemon found is shown before any cycle; once it is accepted the next daemon has none."""
    state = StateDirectory(tmp_path)
    level = {
        "name": "all_reduce 2", "seconds": 1e-3, "bus_bandwidth": 11e9, "bad": 3, "since": 1e9,
        "low_seconds": 1.5e-3, "is_lost": True,
    }  # fmt: skip
    kept = {"backend": "simulated", "levels": {"all_reduce  x2 67108864 all_reduce 2": level}}
    state.save("probe-all_reduce", msgspec.convert(kept, ProbeHistory))
    node = build("a10x2", "all_reduce")
    node.probing.schedule()
    assert node.value("probe_losses", "all_reduce", "simulated") == 1
    assert len(node.probing.losses()) == 1

    [given_up] = node.probing.accept()
    node.probing.save()
    saved = state.load("probe-all_reduce", ProbeHistory)

    assert given_up == "probe all_reduce: all_reduce 2 gives 7.33 GB/s, before 11 GB/s"
    assert node.value("probe_losses", "all_reduce", "simulated") == 0
    assert saved is not None
    assert not any(one.is_lost for one in saved.levels.values())
