"""docs/using/healthcheck.md: its tables are the code's, and its examples work."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from commwatch.findings.health import DRAIN_LIST
from commwatch.findings.verdict import Because
from support.daemon import ROOT
from support.waiting import PATIENCE_SECONDS

PAGE = (ROOT / "docs/using/healthcheck.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_drain_list_is_the_documented_one() -> None:
    """Every code in the same order, with its row of the findings, which says why."""
    section = PAGE.partition("## The drain list\n")[2].partition("These critical findings are not on the list")[0]
    listed = re.findall(r"\[`(\w+)`\]\(\.\./reference/findings/README\.md#(\w+)\)", section)

    assert listed == [(code, code) for code in DRAIN_LIST]


def test_every_reason_is_documented() -> None:
    """In the order of the code."""
    section = PAGE.split("| reason | when |")[1].split("\n\n")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*get_args(Because)]


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
