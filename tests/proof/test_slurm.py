"""A real Slurm in network namespaces: its tasks meet, measure, and hand results to the daemons of their nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from commwatch.state.client import ask_daemon
from support.daemon import environment, running
from support.namespaces import Nodes
from support.slurm import Slurm
from support.waiting import until

pytestmark = [pytest.mark.namespaces, pytest.mark.slurm]

COUNT = 4
SLOW = 3
RECIPES = Path(__file__).parents[2] / "packaging" / "cluster"
KEY = {"COMMWATCH_CLUSTER_KEY": "the key of all these runs"}
ON_A_NODE = ("-N4", "--ntasks-per-node=1", "--kill-on-bad-exit=0")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Four nodes that send at 1 Gbit/s, one of them at half of that, below two leaves."""
    with Nodes(COUNT, tmp_path_factory.mktemp("nodes")).made() as nodes, Slurm(nodes).running() as made:
        for node in range(COUNT):
            nodes.shape(node, "500mbit" if node == SLOW else "1gbit")
        commands = made.folder / "bin"
        commands.mkdir()
        script = commands / "commwatch"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m commwatch "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        yield made


@pytest.fixture
def variables(slurm: Slurm) -> dict[str, str]:
    """Of a launcher: this checkout, and a key."""
    path = f"{slurm.folder}/bin:{os.environ['PATH']}:/usr/sbin"
    return {**KEY, "PATH": path, "PYTHONPATH": environment()["PYTHONPATH"]}


def test_the_tasks_of_a_step_find_each_other(slurm: Slurm, variables: dict[str, str]) -> None:
    """By srun's variables alone: rank, size, meeting place and names."""
    done = slurm.run("srun", *ON_A_NODE, "commwatch", "cluster", "check", "--json", more=variables)

    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert [(one["name"], one["state"]) for one in verdict["members"]] == [(name, "checked") for name in slurm.names]


def probed(slurm: Slurm, variables: dict[str, str]) -> dict[str, Any]:
    """What a probe says."""
    done = slurm.run(
        "srun", *ON_A_NODE, "commwatch", "cluster", "probe", "--backend", "tcp", "--json",
        "--path.state", slurm.state, more=variables,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_two_runs_that_name_a_node_are_a_finding_of_its_daemon(
    slurm: Slurm, variables: dict[str, str], tmp_path: Path
) -> None:
    """The leaves come from Slurm's topology; the daemon of a healthy node has the same runs, and no finding of them."""
    with ExitStack() as stack:
        for node in (0, SLOW):
            folder = tmp_path / str(node)
            folder.mkdir()
            configuration = folder / "commwatch.yaml"
            configuration.write_text("probes: {enabled: false}\n", encoding="utf-8")
            stack.enter_context(running(folder, "--config.file", str(configuration), state=slurm.state_of(node)))
        for _ in range(2):
            answer = probed(slurm, variables)
            assert answer["daemon"] == "taken"
            assert [(one["kind"], one["elements"], one["direction"]) for one in answer["named"]] == [
                ("nic", [f"gpu{SLOW}"], "out")
            ]
        until(lambda: "cluster_nic_slow" in codes(slurm, SLOW), describe=lambda: str(codes(slurm, SLOW)))
        assert series(slurm, SLOW, "cluster_suspect_runs") == {("nic", "eth0", "bandwidth"): 2}
        ratios = series(slurm, SLOW, "cluster_rail_peer_ratio")
        assert ratios["0", "eth0", "sent", "tcp"] == pytest.approx(0.5, abs=0.1)
        assert ratios["0", "eth0", "received", "tcp"] == pytest.approx(1.0, abs=0.1)
        [how] = series(slurm, SLOW, "cluster_info")
        assert how[:5] == ("leaf1", "spine", "slurm", "slurm", "tcp")
        assert series(slurm, 0, "cluster_runs_total")["completed",] == 2
        assert series(slurm, 0, "cluster_suspect_runs") == {}
        assert "cluster_nic_slow" not in codes(slurm, 0)


def codes(slurm: Slurm, node: int) -> set[str]:
    """Of the findings that the daemon of a node has open."""
    return {one["code"] for one in ask_daemon(slurm.state_of(node), "findings")["findings"]}


def series(slurm: Slurm, node: int, name: str) -> dict[tuple[str, ...], float]:
    """A metric of the daemon of a node, by the values of its labels."""
    metrics = ask_daemon(slurm.state_of(node), "snapshot")["metrics"]
    return {
        tuple(one["labels"].values()): one["value"]
        for metric in metrics if metric["name"] == f"commwatch_{name}" for one in metric["series"]
    }  # fmt: skip


def test_the_job_script_checks_probes_and_saves_the_run(slurm: Slurm, variables: dict[str, str]) -> None:
    """Its exit code is that of the probe."""
    done = slurm.run(
        "sbatch", "--wait", f"--nodes={COUNT}", RECIPES / "commwatch-cluster-probe.sbatch", "--backend", "tcp",
        "--path.state", slurm.state, more=variables,
    )  # fmt: skip
    (log,), (report,) = slurm.folder.glob("*probe-*.log"), slurm.folder.glob("*probe-*.json")
    text = log.read_text(encoding="utf-8")

    assert done.returncode == 1, text
    assert "nothing is wrong between these nodes" in text
    assert f"NIC of gpu{SLOW} on rail 0 is slow, sending" in text
    assert [one["name"] for one in json.loads(report.read_bytes())["members"]] == slurm.names


def test_the_script_of_the_timer_takes_the_idle_nodes(slurm: Slurm, variables: dict[str, str]) -> None:
    """All four of them."""
    done = slurm.run(
        RECIPES / "commwatch-cluster-probe-idle", "--backend", "tcp", "--path.state", slurm.state, more=variables
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 of 4 nodes probed over tcp" in done.stdout
