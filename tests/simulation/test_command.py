"""commwatch simulate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commwatch.__main__ import main
from commwatch_rehearsal.simulation.faults.kinds import KINDS
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS


def test_the_list_names_every_node_and_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words, with an example of each kind that can be copied; also where the configuration names a node."""
    monkeypatch.setenv("COMMWATCH_SIMULATE", "h100x8")
    assert main(["simulate", "--list"]) == 0

    text = capsys.readouterr().out
    for name in PRESETS:
        assert f"\n{name}: " in text
    for name in KINDS:
        assert f"\n{name}: " in text
        assert f"{{fault: {name}" in text
    assert "`" not in text


def test_the_list_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are folded at its width; only an example, which is to be copied, stays in one line."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", "--list"]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  example ")]
    assert max(map(len, lines)) <= 80
    assert "  ethernet_utilization 0 to 1 (default 0)" in lines
    assert "  rate                 events: 200/s, 30/min, 3/h or 2/d (without it: once)" in lines


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs; each example is valid on the node that it names."""
    assert main(["simulate", "--list", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in found["presets"]] == list(PRESETS)
    assert {kind["fault"] for kind in found["faults"]} == set(KINDS)
    for kind in found["faults"]:
        (fault,) = parse_faults(f"- {kind['example']}", "x", PRESETS[kind["preset"]], 0.0, 0.0)
        assert fault.kind == kind["fault"]
    (slow,) = (kind for kind in found["faults"] if kind["fault"] == "slow_probe")
    assert [setting["key"] for setting in slow["settings"]] == ["latency", "bandwidth"]


def test_a_node_is_described_with_how_to_run_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A preset, and a file of one's own."""
    assert main(["simulate", "b200x8"]) == 0
    text = capsys.readouterr().out
    assert "18 links of NVLink 5.0" in text
    assert "commwatch run --simulate b200x8" in text

    file = tmp_path / "mine.yaml"
    file.write_text("{like: h100x8, gpus: 2}")
    assert main(["simulate", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"].startswith("2 × H100")


@pytest.mark.parametrize("arguments", [["simulate"], ["simulate", "h100x9"], ["simulate", "h100x8", "--list"]])
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard output."""
    assert main(arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_faults_without_a_simulated_node_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the flag and what is missing."""
    assert main(["check-config", "--simulate.faults", "faults.yaml"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "--simulate.faults" in line
    assert "--simulate h100x8" in line
