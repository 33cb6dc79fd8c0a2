"""docs/healthcheck.md: its tables are the code's, and its examples work."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from commwatch.findings.health import DRAIN_LIST
from commwatch.findings.verdict import Because
from support.daemon import ROOT
from support.waiting import PATIENCE_SECONDS

PAGE = (ROOT / "docs/healthcheck.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_drain_list_is_the_documented_one() -> None:
    """Codes and reasons, in the same order."""
    rows = re.findall(r"^\| \[`(\w+)`\]\(findings/README\.md#(\w+)\) \| (.*) \|$", PAGE, re.MULTILINE)

    assert [(code, why) for code, _, why in rows] == list(DRAIN_LIST.items())
    assert all(code == page for code, page, _ in rows)


def test_every_reason_is_documented() -> None:
    """In the order of the code."""
    section = PAGE.split("| reason | when |")[1].split("\n\n")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*get_args(Because)]


def run(folder: Path, script: str, commwatch: str | None) -> subprocess.CompletedProcess[str]:
    """Run a script with a stand-in of commwatch; the PATH of the script is that of the test."""
    if commwatch is not None:
        (folder / "commwatch").write_text(f"#!/bin/sh\n{commwatch}\n")
        (folder / "commwatch").chmod(0o755)
    here = re.sub(r"^PATH=.*$", f"PATH={folder}:/usr/bin:/bin", script, flags=re.MULTILINE)
    return subprocess.run(
        ["/bin/sh", "-c", here],
        text=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=dict(os.environ),
    )


PROLOG = next(text for text in blocks("sh") if "Prolog=" in text)
PERIODIC = next(text for text in blocks("sh") if "timeout 10 commwatch healthcheck --slurm --drain" in text)


@pytest.mark.parametrize(
    ("commwatch", "code"),
    [
        ("echo 'Critical: NVLink is down'; exit 1", 1),
        ("echo 'OK: nothing'; exit 0", 0),
        ("echo 'Unknown: stale'; exit 0", 0),
        ("echo 'Traceback (most recent call last)' >&2; exit 1", 0),
        ("echo 'Critical: cut off'; kill -9 $$", 0),
        ("exit 2", 0),
        (None, 0),
    ],
    ids=["problem", "ok", "unknown", "a Python that does not start", "killed", "wrong use", "not installed"],
)
def test_the_prolog_fails_for_a_problem_alone(tmp_path: Path, commwatch: str | None, code: int) -> None:
    """A prolog that fails drains the node."""
    assert run(tmp_path, PROLOG, commwatch).returncode == code


def test_the_periodic_check_drains_and_never_fails(tmp_path: Path) -> None:
    """Draining is what the option is for."""
    done = run(tmp_path, PERIODIC, f'echo "$@" > {tmp_path / "asked"}; exit 1')

    assert done.returncode == 0
    assert (tmp_path / "asked").read_text() == "healthcheck --slurm --drain\n"


BATCH = next(text for text in blocks("sh") if "#SBATCH" in text)


@pytest.mark.parametrize(
    ("commwatch", "trains"),
    [("exit 0", True), ("exit 2", True), ("exit 1", False), (None, True)],
    ids=["ok", "unknown", "problem", "not installed"],
)
def test_the_batch_script_trains_unless_the_preflight_refuses(
    tmp_path: Path, commwatch: str | None, trains: bool
) -> None:
    """What is unknown keeps no job from its node."""
    scripts = {"srun": '[ "$1" = --ntasks-per-node=1 ] && shift; exec "$@"', "python": f"echo $1 > {tmp_path}/trained"}
    if commwatch is not None:
        scripts["commwatch"] = commwatch
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", BATCH],
        timeout=PATIENCE_SECONDS,
        check=False,
        capture_output=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )

    assert (done.returncode == 0) == trains
    assert (tmp_path / "trained").exists() == trains


def test_the_plugin_of_node_problem_detector_is_whole() -> None:
    """Valid JSON whose rule sets the condition that it names, with a longer timeout than the check needs."""
    [text] = blocks("json")
    plugin = json.loads(text)

    assert plugin["rules"][0]["condition"] == plugin["conditions"][0]["type"]
    assert plugin["rules"][0]["args"] == ["healthcheck"]
    assert plugin["pluginConfig"]["timeout"] == plugin["rules"][0]["timeout"] == "10s"
