"""What the configuration expects and what was never here: named from the first minute on, each part once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from commwatch.config.settings import Config, Inventory, Paths
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.finding import Sighting
from commwatch.findings.history import CounterHistory
from commwatch.findings.looking import Looking
from commwatch.findings.rules import RULE_SETS
from commwatch.service import pipeline
from commwatch.sources.presence import NvidiaGpus
from support.facts import shipped
from support.whole_node import STARTED_AT, WholeNode

WHOLE = {"gpu": 8, "nvlink": 144, "pcie_lane": 128, "rdma_port": 10}
PRESET = "h100x8ndr"


@contextmanager
def node(
    folder: Path, expected: Mapping[str, int], faults: str, patched: pytest.MonkeyPatch, preset: str = PRESET
) -> Iterator[WholeNode]:
    """A node with these faults since its boot, and a daemon that has just started."""
    patched.setattr(pynvml, "nvmlLib", None)
    patched.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    config = Config(paths=Paths(state=str(folder / "state")), inventory=Inventory(expected=dict(expected)))  # type: ignore[arg-type]
    one = WholeNode(preset, folder, faults=faults, config=config)
    try:
        one.run()
        one.time += 1.0
        one.run()
        yield one
    finally:
        one.close()


def seen(one: WholeNode) -> list[Sighting]:
    def failed(rule: str, error: Exception) -> None:
        raise AssertionError(rule) from error

    looking = Looking(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), failed)
    return looking.at(one.snapshot(), STARTED_AT + one.time)


def never_seen(one: WholeNode) -> dict[str, float | str]:
    """By component: how many parts were never seen."""
    return {
        sighting.component.identity: sighting.evidence[0].value
        for sighting in seen(one)
        if sighting.code.endswith("_never_seen")
    }


@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ("[]", {}),
        ("- {fault: nvlink_down, gpu: 2, link: 3, at: 0s}", {"node/nvlink": 1}),
        ("- {fault: pcie_width, gpu: 1, lanes: 8, at: 0s}", {"node/pcie_lane": 8}),
        ("- {fault: rdma_port_down, device: mlx5_3, at: 0s}", {"node/rdma_port": 1}),
        ("- {fault: gpu_missing, gpu: 6, at: 0s}", {"node/gpu": 1}),
    ],
)
def test_what_was_never_here_is_found_at_the_first_look(
    faults: str, found: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing GPU takes its links and lanes with it: they are not found besides."""
    with node(tmp_path, WHOLE, faults, monkeypatch) as one:
        assert never_seen(one) == found


def test_what_is_learned_and_goes_is_named_by_its_own_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link that went down is one finding, and the one that was down from the boot another."""
    faults = "- {fault: nvlink_down, gpu: 2, link: 3, at: 0s}\n- {fault: nvlink_down, gpu: 5, link: 1, at: 2h}"
    with node(tmp_path, WHOLE, faults, monkeypatch) as one:
        while one.time < 7100.0:
            one.time += 60.0
            one.run()
        assert never_seen(one) == {"node/nvlink": 1}
        one.time += 200.0
        one.run()

        down = [sighting.component.name for sighting in seen(one) if sighting.code == "nvlink_down"]
        assert (never_seen(one), down) == ({"node/nvlink": 1}, ["GPU5 link 1"])


@pytest.mark.parametrize(
    ("preset", "expected", "handed_on", "found"),
    [
        ("h100x8", {}, 0, {"node/gpu": 1}),
        ("h100x8ndr", {}, 0, {"node/gpu": 1}),
        ("h100x8", {"gpu": 7}, 0, {}),  # the configuration overrules the board
        ("h100x8", {}, 1, {}),  # a virtual machine has it
        ("b200x8", {}, 0, {"node/gpu": 1}),  # its switches do not show on the bus, the name of its GPUs says it
        ("a100x4", {}, 0, {}),
    ],
)
def test_boards_say_how_many_gpus_there_must_be(
    preset: str,
    expected: dict[str, int],
    handed_on: int,
    found: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a configuration, from the first look on; elsewhere what never was here is not known."""
    monkeypatch.setattr(pipeline, "nvidia_gpus", lambda sysfs: NvidiaGpus(7, handed_on))
    with node(tmp_path, expected, "- {fault: gpu_missing, gpu: 2, at: 0s}", monkeypatch, preset) as one:
        assert never_seen(one) == found
