"""The shipped files, listed and copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commwatch.__main__ import main


def test_the_shipped_files_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules, runbooks, dashboards, unit and documentation lie in the new folder, and the links between them hold."""
    assert main(["assets", "--to", str(tmp_path / "shipped"), "--json"]) == 0

    copied = {name: Path(path) for name, path in json.loads(capsys.readouterr().out).items()}
    for name, file in {
        "alerts": "runbooks/CommwatchNvlinkDown.md",
        "docs": "reference/findings/README.md",
        "grafana": "dashboards/commwatch-node.json",
        "packaging/cluster": "commwatch-cluster-probe.sbatch",
        "packaging/slurm": "prolog.sh",
        "systemd": "commwatch.service",
    }.items():
        assert (copied[name] / file).is_file(), file
    assert (copied["docs"] / "../alerts/runbooks").is_dir()
    assert not (copied["alerts"] / "tests").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written over; one line says so."""
    (tmp_path / "own").write_text("mine", encoding="utf-8")

    assert main(["assets", "--to", str(tmp_path)]) == 2

    assert "is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
