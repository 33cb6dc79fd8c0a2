"""commwatch probe --sweep: the sizes, the plan, the table as nccl-tests has it, the picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from commwatch.config.settings import Config, Paths, Probe, Probes, Rate, Simulation
from commwatch.errors import CommwatchError
from probes.test_command import run
from support.quick_ranks import measure_quickly


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A simulated node with two GPUs, whose ranks have no processes."""
    measure_quickly(monkeypatch)
    return Config(paths=Paths(state=str(tmp_path / "state")), simulation=Simulation(preset="a10x2"))


@pytest.mark.parametrize(
    ("probe", "text", "sizes"),
    [
        ("all_reduce", "8B:1GiB:2", [8 * 2**step for step in range(28)]),
        ("all_reduce", "1KiB:9KiB:3", [1024, 3072, 9216]),
        ("all_reduce", "4B:4B:2", [4]),
        ("all_gather", "4B:64B:2", [16, 32, 64]),
    ],
)
def test_sizes_rise_by_the_factor_up_to_the_last_one(
    node: Config, probe: str, text: str, sizes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """As nccl-tests -b 8 -e 1G -f 2; those that whole elements of four ranks make equal count once."""
    four = Config(paths=node.paths, simulation=Simulation(preset="rtx3090x4"))

    assert run(four, "--sweep", text, probe, "--json") == 0

    [answer] = json.loads(capsys.readouterr().out)["probes"]
    assert [row["size_bytes"] for row in answer["rows"]] == sizes


def test_each_size_has_a_step_and_the_time_of_a_cycle_of_its_own(
    node: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A cycle has two steps."""
    plans = measure_quickly(monkeypatch)

    assert run(node, "--sweep", "8B:32B:2") == 0

    [plan] = plans
    assert [(step.size_bytes, step.purpose) for step in plan.steps] == [(size, "bandwidth") for size in (8, 16, 32)]
    assert plan.timed_seconds == pytest.approx(1.5 * Probes().kernel_time)


def test_a_sweep_prints_the_columns_of_nccl_tests(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Size in bytes, time in µs, algorithm and bus bandwidth in GB/s, and the most that is reached."""
    assert run(node, "--sweep", "8B:64MiB:2048") == 0

    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    head = rows.index(["size", "time", "algbw", "busbw", "expected"])
    assert rows[head + 1] == ["B", "µs", "GB/s", "GB/s", "GB/s"]
    assert [row[0] for row in rows[head + 2 : head + 5]] == ["8", "16384", "33554432"]
    size, time, algorithm, bus = map(float, rows[head + 4][:4])
    assert algorithm == pytest.approx(size / time / 1e3, rel=0.01)
    assert bus == pytest.approx(algorithm, rel=0.01)
    assert "bus bandwidth, at 32 MiB" in out


def test_json_and_picture_have_every_size(node: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is configured for the probe's own size is not held against the others."""
    slow = Probes(definitions={"ring": Probe(expected_bandwidth=Rate(1e12))})
    config = Config(paths=node.paths, simulation=node.simulation, probes=slow)
    picture = tmp_path / "curve.svg"

    assert run(config, "--sweep", "8B:1MiB:32", "--json", "--output", str(picture)) == 0

    [answer] = json.loads(capsys.readouterr().out)["probes"]
    assert [row["size_bytes"] for row in answer["rows"]] == [8, 256, 8192, 262144]
    assert all(row["bus_bandwidth_bytes_per_second"] > 0 for row in answer["rows"])
    root = ElementTree.fromstring(picture.read_text())  # noqa: S314 - our own
    circles = root.findall(".//{*}circle/{*}title")
    assert [title.text.partition(": ")[0] for title in circles if title.text] == [
        f"ring, {size}" for size in ("8 B", "256 B", "8 KiB", "256 KiB")
    ]
    assert "Simulated node a10x2" in picture.read_text()


def test_what_has_no_result_has_no_curve(node: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job on the GPUs: skipped, exit code 3, and a picture that says so; or a node with nobody to talk to."""
    alone = Config(paths=node.paths, simulation=Simulation(preset="h200x1"))
    (tmp_path / "faults.yaml").write_text("- {fault: job, gpu: 1, at: 0s}\n")
    busy = Config(paths=node.paths, simulation=Simulation(preset="a10x2", faults=str(tmp_path / "faults.yaml")))

    assert run(busy, "--sweep", "8B:1MiB:32", "--output", str(tmp_path / "curve.svg")) == 3
    assert "gpu_busy" in capsys.readouterr().out
    assert "no result" in (tmp_path / "curve.svg").read_text()
    assert run(alone, "--sweep", "8B:1MiB:2") == 3
    assert "single_gpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--sweep 8B", "expected FIRST:LAST:FACTOR"),
        ("--sweep 8:1GiB:2", "expected a size with a unit"),
        ("--sweep 8B:1GiB:1", "expected a whole number from 2 on"),
        ("--sweep 8B:1GiB:two", "expected a whole number from 2 on"),
        ("--sweep 1GiB:8B:2", "expected sizes that rise"),
        ("--sweep 8B:8GiB:2", "from 1B to 4 GiB"),
        ("--sweep 0B:1GiB:2", "expected sizes that rise"),
        ("--sweep 8B:1MiB:2 host_copies", "host_copies measures host_copies"),
        ("--sweep 8B:1MiB:2 --pairs", "without it"),
        ("--output curve.svg", "commwatch heatmap --output"),
        ("--sweep 8B:1MiB:2 --output curve.png", "ends in .svg"),
    ],
)
def test_what_is_no_sweep_is_one_clear_line(arguments: str, words: str, node: Config) -> None:
    """With what would be right, before anything is measured."""
    with pytest.raises(CommwatchError, match=words) as raised:
        run(node, *arguments.split())
    assert raised.value.exit_code == 2
