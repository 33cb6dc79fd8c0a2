"""What the configuration expects and what was never here: named from the first minute on, each part once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Inventory, Paths
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.finding import Match
from commwatch.findings.history import CounterHistory
from commwatch.findings.rule_engine import RuleEngine
from commwatch.findings.rules import RULE_SETS
from commwatch.node import gpus_on_bus
from commwatch.sources.presence import NvidiaGpus
from commwatch_rehearsal.simulation.presets import PRESETS
from support.facts import shipped
from support.simulated_daemon import SimulatedDaemon, rehearsed

WHOLE = {"gpu": 8, "nvlink": 144, "pcie_lane": 128, "rdma_port": 10}
PRESET = "h100x8ndr"


@contextmanager
def node(
    folder: Path, expected: Mapping[str, int], faults: str, patched: pytest.MonkeyPatch, preset: str = PRESET
) -> Iterator[SimulatedDaemon]:
    """A node with these faults since its boot, and a daemon that has just started."""
    config = Config(paths=Paths(state=str(folder / "state")), inventory=Inventory(expected=dict(expected)))  # type: ignore[arg-type]
    with rehearsed(preset, folder, patched, faults, config=config) as one:
        one.run()
        one.time += 1.0
        one.run()
        yield one


def seen(one: SimulatedDaemon) -> list[Match]:
    def failed(rule: str, error: Exception) -> None:
        raise AssertionError(rule) from error

    engine = RuleEngine(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), failed)
    return engine.evaluate(one.snapshot(), one.clock.time())


def never_seen(one: SimulatedDaemon) -> dict[str, float | str]:
    """By component: how many parts were never seen."""
    return {
        match.component.identity: match.evidence[0].value for match in seen(one) if match.code.endswith("_never_seen")
    }


def named(one: SimulatedDaemon) -> set[tuple[str, str]]:
    """Codes and names of the parts that are down or lack."""
    codes = ("nvlink_down", "pcie_width_dropped", "rdma_port_down", "gpu_missing", "gpu_not_answering", "gpu_lost")
    return {(match.code, match.component.name) for match in seen(one) if match.code in codes}


@pytest.mark.parametrize(
    ("faults", "parts", "found"),
    [
        ("[]", set(), {}),
        ("- {fault: nvlink_down, gpu: 2, link: 3, at: 0s}", {("nvlink_down", "GPU2 link 3")}, {}),
        ("- {fault: gpu_missing, gpu: 6, at: 0s}", set(), {"node/gpu": 1}),
    ],
)
def test_what_the_configuration_asks_for_is_found_at_the_first_look(
    faults: str, parts: set[tuple[str, str]], found: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name where a part is there and does not work; a missing GPU takes its links and lanes with it."""
    with node(tmp_path, WHOLE, faults, monkeypatch) as one:
        assert (named(one), never_seen(one)) == (parts, found)


@pytest.mark.parametrize(
    ("preset", "fault", "found"),
    [
        ("h100x8ndr", "nvlink_down, gpu: 2, link: 3", ("nvlink_down", "GPU2 link 3")),
        ("h100x8ndr", "rdma_port_down, device: mlx5_8", ("rdma_port_down", "mlx5_8 port 1")),
        ("h100x8ndr", "gpu_lost, gpu: 6", ("gpu_lost", "GPU6")),
        ("rtx3090x4", "pcie_width, gpu: 1, lanes: 8", ("pcie_width_dropped", "PCIe link of GPU1")),
    ],
)
def test_what_one_reading_has_shown_is_named_when_it_goes(
    preset: str, fault: str, found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first minute of a daemon that knows nothing yet, whatever the board; nothing is said to be never seen."""
    with node(tmp_path, {}, f"- {{fault: {fault}, at: 3610s}}", monkeypatch, preset) as one:
        assert named(one) == set()
        one.time = 3615.0
        one.run()

        assert (named(one), never_seen(one)) == ({found}, {})


@pytest.mark.parametrize(("preset", "gpu"), [("b200x8", 3), ("rtx3090x4", 2)])
def test_a_gpu_that_was_lost_before_the_daemon_knew_anything_is_lost(
    preset: str, gpu: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a lost state directory: the driver still names it, so that it is not one that was never seen."""
    with node(tmp_path, {}, f"- {{fault: gpu_lost, gpu: {gpu}, at: 0s}}", monkeypatch, preset) as one:
        assert (named(one), never_seen(one)) == ({("gpu_lost", f"GPU{gpu}")}, {})
        assert {lost.component.key for lost in seen(one)} >= {PRESETS[preset].gpus[gpu].pci_address}


def test_what_is_learned_and_goes_is_named_beside_what_never_came_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link that went down is one finding, and the one that was down from the boot another."""
    faults = "- {fault: nvlink_down, gpu: 2, link: 3, at: 0s}\n- {fault: nvlink_down, gpu: 5, link: 1, at: 20m}"
    with node(tmp_path, WHOLE, faults, monkeypatch) as one:
        while one.time < 1000.0:
            one.time += 180.0  # a part that was not looked at for longer is not taken for watched
            one.run()
        assert named(one) == {("nvlink_down", "GPU2 link 3")}
        one.time += 200.0
        one.run()

        assert named(one) == {("nvlink_down", "GPU2 link 3"), ("nvlink_down", "GPU5 link 1")}
        assert never_seen(one) == {}


@pytest.mark.parametrize(
    ("preset", "expected", "handed_on", "found"),
    [
        ("h100x8", {}, 0, {"node/gpu": 1}),
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
    monkeypatch.setattr(gpus_on_bus, "nvidia_gpus", lambda sysfs: NvidiaGpus(7, handed_on))
    with node(tmp_path, expected, "- {fault: gpu_missing, gpu: 2, at: 0s}", monkeypatch, preset) as one:
        assert never_seen(one) == found
