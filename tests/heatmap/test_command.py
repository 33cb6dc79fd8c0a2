"""commwatch heatmap: from the daemon's history, from files, fresh, into files, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from commwatch.config.settings import Config, Paths, Simulation
from commwatch.errors import CommwatchError
from heatmap.command import run
from heatmap.matrices import matrix, slow_gpu
from support.quick_ranks import read_driver_here, read_sysfs_here


def error_of(config: Config, *arguments: str) -> tuple[int, str]:
    with pytest.raises(CommwatchError) as caught:
        run(config, *arguments)
    assert "\n" not in str(caught.value)
    return caught.value.exit_code, str(caught.value)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A machine with an empty state directory."""
    return Config(paths=Paths(state=str(tmp_path / "state")))


@pytest.fixture(autouse=True)
def no_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busy test of a simulated driver needs no second between its two looks; driver and PCI tree need no child."""
    monkeypatch.setattr("commwatch.node.gpus_now.BUSY_SAMPLES_APART_SECONDS", 0.0)
    read_sysfs_here(monkeypatch)
    read_driver_here(monkeypatch)


def save(folder: Path, name: str, found: msgspec.Struct) -> str:
    file = folder / name
    file.write_bytes(msgspec.json.encode(found))
    return str(file)


def test_json_is_what_from_reads(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unchanged through any number of rounds."""
    assert run(config, "--from", save(tmp_path, "a.json", slow_gpu()), "--json") == 0
    printed = capsys.readouterr().out
    (tmp_path / "b.json").write_text(printed)

    assert run(config, "--from", str(tmp_path / "b.json"), "--json") == 0
    assert capsys.readouterr().out == printed
    assert msgspec.json.decode(printed, type=type(slow_gpu())) == slow_gpu()


def test_a_picture_is_written(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, as XML, and where it is; the terminal is left alone otherwise."""
    target = tmp_path / "pairs.svg"

    assert run(config, "--from", save(tmp_path, "a.json", slow_gpu()), "--output", str(target)) == 0

    assert capsys.readouterr().out == f"drawn into {target}\n"
    assert "GPU3 is slow" in "".join(ET.parse(target).getroot().itertext())  # noqa: S314 - our own drawing


def test_two_matrices_are_compared(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text, as JSON and as a picture."""
    before, now = save(tmp_path, "a.json", matrix(8)), save(tmp_path, "b.json", slow_gpu(3))

    assert run(config, "--from", now, "--compare", before) == 0
    assert "-  All pairs of GPU3: 50 % of before in the median: slower" in capsys.readouterr().out

    assert run(config, "--from", now, "--compare", before, "--json", "--output", str(tmp_path / "c.svg")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], len(found["changes"])) == ("commwatch-pair-comparison/1", 56)
    assert "in percent of before" in (tmp_path / "c.svg").read_text()


def test_matrices_that_are_not_comparable_are_exit_code_1(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are drawn, and the reason is said."""
    other = save(tmp_path, "a.json", matrix(4, nccl_version="2.20.0"))

    assert run(config, "--from", save(tmp_path, "b.json", matrix(4)), "--compare", other) == 1
    assert "Not comparable: NCCL version: 2.20.0 before, 2.27.3 now" in capsys.readouterr().out


def test_the_last_matrix_of_the_daemon_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that it keeps the newest; of a damaged file nothing is drawn, and the exit code is 4: no daemon runs."""
    state = tmp_path / "state" / "simulated-rtx3090x4"
    state.mkdir(parents=True)
    kept = [matrix(4, taken_at=at, backend="simulated") for at in (1.79e9, 1.79e9 + 60)]
    file = state / "probe-pairs.json"
    file.write_bytes(msgspec.json.encode({"backend": "simulated", "matrices": kept}))

    assert run(simulated(tmp_path), "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=type(kept[0])) == kept[1]

    file.write_bytes(file.read_bytes()[:200])
    assert error_of(simulated(tmp_path))[0] == 4


def test_without_any_matrix_the_message_says_how_to_get_one(config: Config) -> None:
    """Exit code 4 without a daemon, as of the other commands; an empty state directory is no error of its own."""
    code, message = error_of(config)

    assert code == 4
    assert "commwatch heatmap --fresh" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "0,1"), "--gpus says what --fresh measures"),
        (("--compare", "a", "--relative"), "choose one"),
        (("--from", "gone.json"), "gone.json: No such file"),
        (("--fresh", "--compare", "gone.json"), "gone.json: No such file"),
        (("--fresh", "--output", "a.gif"), "expected a name that ends in .svg"),
        (("--fresh", "--output", "a.PNG"), "--output a.PNG: pictures are SVG"),
        (("--fresh", "--output", "gone/a.svg"), "there is no folder"),
        (("--fresh", "--gpus", "a"), "expected indexes with commas between"),
    ],
)
def test_wrong_use_is_said_before_anything_is_measured(
    config: Config, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, no progress."""
    code, text = error_of(config, *arguments)

    assert (code, message in text) == (2, True), text
    assert capsys.readouterr() == ("", "")


def simulated(tmp_path: Path, faults: str = "", preset: str = "rtx3090x4") -> Config:
    (tmp_path / "faults.yaml").write_text(faults)
    return Config(
        paths=Paths(state=str(tmp_path / "state")),
        simulation=Simulation(preset=preset, faults=str(tmp_path / "faults.yaml")),
    )


def test_a_fresh_matrix_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every ordered pair of the chosen GPUs, called simulated, and not kept."""
    config = simulated(tmp_path)

    assert run(config, "--fresh", "--gpus", "0,2,3") == 0

    out, err = capsys.readouterr()
    assert out.startswith("Simulated node rtx3090x4: none of this is real.")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("GPU")] == ["GPU0", "GPU2", "GPU3"]
    assert "pairs: done after" in err
    assert error_of(config)[0] == 4


def test_a_busy_node_is_not_measured(tmp_path: Path) -> None:
    """Exit code 3, with the reason."""
    code, message = error_of(simulated(tmp_path, "- fault: job\n"), "--fresh")

    assert (code, "gpu_busy" in message) == (3, True)


def test_a_failed_cycle_gives_no_picture(tmp_path: Path) -> None:
    """Exit code 1, with the reason; no file."""
    config = simulated(tmp_path, "- fault: failing_probe\n  reason: crashed\n")
    code, message = error_of(config, "--fresh", "--output", str(tmp_path / "a.svg"))

    assert (code, "in phase setup: crashed" in message) == (1, True)
    assert not (tmp_path / "a.svg").exists()
