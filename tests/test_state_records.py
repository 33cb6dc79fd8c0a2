"""What each kind of state file may say: nothing twice, nothing out of range, nothing that contradicts the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.cluster.node_record import NodeHistory
from commwatch.diagnosis.health.counts import HealthCounts
from commwatch.jobs.logs.tracker import JobLogsState
from commwatch.node.inventory_state import InventoryState
from commwatch.node.wrap import WrapsState
from commwatch.probes.by_hand.trial import SettingTrials
from commwatch.probes.gate.hold import Hold
from commwatch.probes.results.history import (
    ProbeHistory,
)
from commwatch.probes.results.pair_record import PairHistory
from commwatch.state.directory import StateDirectory
from commwatch.state.maintenance import Maintenance
from commwatch.state.records import encode, read_file
from commwatch.state.simulation_start import SimulationStart
from support.state_files import sealed, unsealed
from support.state_records import NOW, record

Change = Callable[[Any], None]


def put(*way: Any) -> Change:
    """Another value at a place: the last of the way."""

    def change(document: Any) -> None:
        *before, key, value = way
        for step in before:
            document = document[step]
        document[key] = value

    return change


def double(*way: Any) -> Change:
    """The first entry of a list once more."""

    def change(document: Any) -> None:
        for step in way:
            document = document[step]
        document.append(copy.deepcopy(document[0]))

    return change


ESCAPE = "\x1b[2J"
WRONG: dict[type[msgspec.Struct], tuple[msgspec.Struct, dict[str, Change]]] = {
    InventoryState: (record(InventoryState), {
        "one slot twice": put("gpus", "GPU-2", "pci_bus_id", "0000:10:00.0"),
        "less than nothing is expected": put("ports", "eth0", "expected", -1.0),
        "more than there is": put("ports", "eth0", "candidate", 1e16),
        "nothing is being watched": put("ports", "eth0", "candidate", None),
        "less is being watched": put("ports", "eth0", "candidate", 1e9),
        "for less than no time": put("ports", "eth0", "held_seconds", -1.0),
        "two of one GPU": put("gpus", "GPU-1", "presence", "expected", 2.0),
        "half a lane": put("gpus", "GPU-1", "pcie_lanes", "expected", 0.5),
        "64 lanes": put("gpus", "GPU-1", "pcie_lanes", "expected", 64.0),
        "link 64": put("gpus", "GPU-1", "links", {"64": {}}),
        "index -1": put("gpus", "GPU-1", "index", -1),
        "a name of two lines": put("gpus", "GPU-1", "name", "H100\n"),
        "a port that clears the screen": put("ports", ESCAPE, {}),
        "a long port": put("rdma_ports", "m" * 257, {}),
        "less accepted": put("accepted", {"GPU-1 nvlink": -1}),
    }),
    ProbeHistory: (record(ProbeHistory), {
        "a number of GPUs twice": double("last", "scaling"),
        "a copy twice": double("last", "copies"),
        "a negative bandwidth": put("last", "bus_bandwidth", -1.0),
        "a negative latency": put("last", "latency_seconds", -1e-6),
        "a negative set-up": put("last", "setup_seconds", -1.0),
        "nothing is expected": put("last", "expected", "bytes_per_second", 0.0),
        "a source of its own": put("last", "expected", "source", "guess"),
        "a GPU that clears the screen": put("last", "copies", 0, "gpu", [ESCAPE, ""]),
        "a long version": put("last", "torch_version", "2" * 257),
        "a measure of its own": put("conditions", "collective", "gather"),
        "a version of two lines": put("conditions", "nccl_version", "2\n3"),
        "a course of negative times": put("courses", "latency", "good", [-1.0]),
        "too long a course": put("courses", "latency", "good", [1.0] * 201),
        "a course that never began": put("courses", "latency", "since", None),
        "a narrow baseline": put("courses", "latency", "reference", "width", 0.0),
        "a row of none": put("latency_streak", "count", 0),
        "a row without a time": put("latency_streak", "last_at", None),
        "a row that was never judged": put("latency_judged_at", None),
        "after the year 9999": put("last_completion_at", 1e12),
        "a result of no cycle": put("last_completion_at", None),
        "a result under no conditions": put("conditions", None),
        "settled and learning": put("learned", "all_reduce H100", "settled", 4e11),
        "a negative share": put("occupied", 0, "gpu_seconds", -1.0),
        "another backend": put("backend", "mpi"),
    }),
    PairHistory: (record(PairHistory), {
        "a matrix twice": double("matrices"),
        "a good one twice": double("good"),
        "a cell twice": double("matrices", 0, "cells"),
        "an end twice": double("matrices", 0, "endpoints"),
        "a cell to nowhere": put("matrices", 0, "cells", 0, "destination", 2),
        "a cell to itself": put("matrices", 0, "cells", 0, "destination", 0),
        "a suspect elsewhere": put("matrices", 0, "suspects", 0, "cells", [[0, 7]]),
        "surer than sure": put("matrices", 0, "suspects", 0, "confidence", 1.5),
        "a negative bandwidth": put("good", 0, "cells", 0, "bandwidth", -4e10),
        "a negative latency": put("good", 0, "cells", 0, "latency_seconds", -1.0),
        "an end that clears the screen": put("matrices", 0, "endpoints", 0, "label", ESCAPE),
        "before 1970": put("matrices", 0, "taken_at", -1.0),
    }),
    WrapsState: (record(WrapsState), {
        "a counter twice": double("devices", "rdma", "mlx5_0:1"),
        "more than it holds": put("devices", "rdma", "mlx5_0:1", 0, 1, 2**32),
        "less than nothing": put("devices", "rdma", "mlx5_0:1", 0, 1, -1),
        "half a wrap": put("devices", "rdma", "mlx5_0:1", 0, 2, 2**31),
        "nothing lost": put("devices", "rdma", "mlx5_0:1", 0, 2, 0),
        "a counter that does not wrap": put("devices", "rdma", "mlx5_0:1", 0, 0, 0, "commwatch_gpu_info"),
        "a counter of its own": put("devices", "rdma", "mlx5_0:1", 0, 0, 0, "x"),
        "a label more": put("devices", "rdma", "mlx5_0:1", 0, 0, 1, ["mlx5_0", "1", "2"]),
        "a device that clears the screen": put("devices", "rdma", "mlx5_0:1", 0, 0, 1, [ESCAPE, "1"]),
    }),
    JobLogsState: (record(JobLogsState), {
        "a kind twice": double("counts", "open", "errors"),
        "less than no line": put("counts", "errors", "ib", -1),
        "no line": put("counts", "open", "errors", 0, "count", 0),
        "a device that clears the screen": put("counts", "devices", {ESCAPE: 1}),
        "too many GPUs": put("counts", "silent", [0] * 1025),
        "began never": put("counts", "open", "began", -1.0),
        "a place before the file": put("resume", '{"files":{"1:2":[-1,99,false]}}'),
        "no place": put("resume", "{"),
    }),
    NodeHistory: (record(NodeHistory), {
        "a rail twice": double("last", "rails"),
        "a name twice": double("named"),
        "a run twice": double("known"),
        "a cause twice": double("check", "causes"),
        "a way twice": double("check", "unreachable"),
        "a name that no run gave": put("last", "suspicions", []),
        "a run that measured nothing": put("last", "outcome", "busy"),
        "a failed check that never was": put("check", None),
        "a negative rate": put("last", "rails", 0, "sent", -1.0),
        "in no run": put("named", 0, "runs", 0),
        "less than no time": put("occupied_seconds", -1.0),
        "a rail that clears the screen": put("last", "rails", 0, "device", ESCAPE),
    }),
    SettingTrials: (record(SettingTrials), {
        "a step twice": double("trials", 0, "gains"),
        "a negative time": put("trials", 0, "gains", 0, "with_seconds", -1.0),
        "a setting that clears the screen": put("trials", 0, "settings", {"NCCL_ALGO": ESCAPE}),
        "at no time": put("trials", 0, "taken_at", -1.0),
    }),
    SimulationStart: (SimulationStart(NOW), {"before 1970": put("started_at", -1.0)}),
    HealthCounts: (HealthCounts({"stale": 1}), {"a word": put("unknown", "stale", "x")}),
    Hold: (Hold(NOW + 60, NOW), {"after the year 9999": put("until", 1e12), "before 1970": put("since", -1.0)}),
    Maintenance: (Maintenance("firmware", NOW + 60, NOW), {
        "after the year 9999": put("until", 1e12), "a reason that clears the screen": put("reason", ESCAPE),
        "a long reason": put("reason", "x" * 33),
    }),
}  # fmt: skip
"""By kind: a record that makes sense, and what makes it senseless."""


@pytest.mark.parametrize("kind", WRONG)
def test_what_makes_sense_is_read(kind: type[msgspec.Struct], tmp_path: Path) -> None:
    """With its check sum, and without one as version 0.1.0 wrote it."""
    kept, _ = WRONG[kind]
    file = tmp_path / "record.json"
    for content in (encode(kept), msgspec.json.encode(kept)):
        file.write_bytes(content)
        assert read_file(file, kind) == kept


@pytest.mark.parametrize(("kind", "what"), [(kind, what) for kind, (_, changes) in WRONG.items() for what in changes])
def test_what_makes_no_sense_is_set_aside(kind: type[msgspec.Struct], what: str, tmp_path: Path) -> None:
    """Although its types are right and its check sum fits."""
    kept, changes = WRONG[kind]
    document = unsealed(encode(kept))
    changes[what](document)
    file = tmp_path / "record.json"
    for content in (sealed(document), msgspec.json.encode(document)):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"\w"):
            read_file(file, kind)

    assert StateDirectory(tmp_path).load("record", kind) is None
    assert list(tmp_path.glob("record.damaged-*"))
