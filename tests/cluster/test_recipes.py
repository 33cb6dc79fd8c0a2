"""The recipes of packaging/cluster: what their launchers would do is what the members expect."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.__main__ import build_parser
from commwatch.cluster.environment import Own, place
from support.passes import in_one_pass

FOLDER = Path(__file__).parents[2] / "packaging" / "cluster"
SCRIPTS = [one for one in sorted(FOLDER.iterdir()) if one.read_text(encoding="utf-8").startswith("#!/bin/bash")]
DOCUMENT = Path(__file__).parents[2] / "docs" / "using" / "cluster.md"


def kubernetes() -> dict[str, dict[str, Any]]:
    """The objects by kind."""
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_each_recipe_is_in_the_document() -> None:
    """Whoever looks for a launcher finds its file."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [one.name for one in FOLDER.iterdir() if one.name not in text] == []


@in_one_pass("script", SCRIPTS)
def test_a_script_has_no_error_that_a_shell_sees(script: Path) -> None:
    """It ends at the first failure, and is executable."""
    assert subprocess.run(["bash", "-n", script], capture_output=True).returncode == 0
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o111


@pytest.mark.shellcheck
def test_shellcheck_has_nothing_to_say_of_the_scripts() -> None:
    """All of them."""
    done = subprocess.run(["shellcheck", *SCRIPTS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@in_one_pass("script", SCRIPTS)
def test_a_script_makes_its_key_or_asks_for_it(script: Path) -> None:
    """No key stands in a file, and each command of commwatch that it has can be read."""
    text = script.read_text(encoding="utf-8")
    assert "COMMWATCH_CLUSTER_KEY=$(openssl rand -hex 32)" in text or "${COMMWATCH_CLUSTER_KEY:?" in text
    for verb in re.findall(r"commwatch cluster (check|probe)\b", text):
        build_parser().parse_args(["cluster", verb])


IDLE_NODES = {
    # name: (lines of sinfo, COMMWATCH_GPUS_PER_NODE, options of srun; none: it is not started)
    "Slurm would start nodes that are powered down or just going down": (
        ("a idle (null)", "b idle~ (null)", "c idle (null)", "c idle (null)", "d idle# (null)"), "", "a,c",
    ),
    "most have 4 GPUs": (("a idle gpu:4", "b idle gpu:h100:4(S:0-1)", "c idle gpu:8", "d idle (null)"), "", "4 a,b"),
    "two kinds of GPU, and shares": (
        ("a idle gpu:a:2(S:0,1),gpu:b:1,shard:32", "b idle gpu:a:2,gpu:b:1,shard:32"), "", "3 a,b",
    ),
    "those that the site asks for": (("a idle gpu:4", "b idle gpu:4", "c idle gpu:8", "d idle gpu:8"), "8", "8 c,d"),
    "one of each kind": (("a idle gpu:4", "b idle gpu:8"), "", None),
    "none": ((), "", None),
}  # fmt: skip


@in_one_pass("name", IDLE_NODES)
def test_the_timer_measures_idle_nodes_with_equally_many_gpus(name: str, tmp_path: Path) -> None:
    """One request of Slurm has one number for all its nodes, and is refused where a node has fewer."""
    lines, wanted, expected = IDLE_NODES[name]
    for program, does in {"sinfo": f"printf '%s\\n' {shlex.join(lines)}", "srun": 'echo "$@"'}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / program).chmod(0o755)

    done = subprocess.run(
        [FOLDER / "commwatch-cluster-probe-idle"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "COMMWATCH_GPUS_PER_NODE": wanted},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    asked = re.findall(r"--(?:gpus-per-node|nodelist)=(\S+)", done.stdout)
    assert " ".join(asked) == (expected or ""), done.stdout + done.stderr


def test_a_run_that_slurm_refuses_fails_the_unit(tmp_path: Path) -> None:
    """By itself srun exits with 1 then, as the probe does where it names something."""
    for program, does in {
        "sinfo": r"printf '%s\n' 'a idle gpu:8' 'b idle gpu:8'",
        "srun": 'exit "${SLURM_EXIT_ERROR:-1}"',
    }.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / program).chmod(0o755)
    service = ConfigParser(strict=False)
    service.read(FOLDER / "commwatch-cluster-probe.service")

    done = subprocess.run(
        [FOLDER / "commwatch-cluster-probe-idle"], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True
    )

    assert str(done.returncode) not in ("0", *service["Service"]["SuccessExitStatus"].split())


@in_one_pass("name", ["commwatch-cluster-probe.sbatch", "commwatch-cluster-probe-idle", "kubernetes.yaml"])
def test_members_have_the_gpus_of_their_nodes(name: str) -> None:
    """A step of Slurm has none that its job did not ask for (srun(1), --gres)."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert "--gpus-per-node=" in text or "nvidia.com/gpu: 8" in text


def test_the_timer_starts_the_service() -> None:
    """By the same name; what a run names is no failure of the unit, and a run that measured nothing (3) is one."""
    service, timer = ConfigParser(strict=False), ConfigParser(strict=False)
    for reader in (service, timer):
        reader.optionxform = str  # type: ignore[assignment,method-assign]
    service.read(FOLDER / "commwatch-cluster-probe.service")
    timer.read(FOLDER / "commwatch-cluster-probe.timer")
    assert service["Service"]["SuccessExitStatus"] == "1 75"
    assert Path(service["Service"]["ExecStart"]).name in {one.name for one in SCRIPTS}
    assert timer["Timer"]["OnCalendar"]


def test_the_pods_of_the_cron_job_find_each_other() -> None:
    """One a node, as many as the size says, below a headless service of the name that MASTER_ADDR has."""
    objects = kubernetes()
    service, cron = objects["Service"], objects["CronJob"]
    job = cron["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    given = {one["name"]: one.get("value", "") for one in container["env"]}
    namespace = cron["metadata"]["namespace"]

    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == int(given["COMMWATCH_CLUSTER_SIZE"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"] == {"name": pod["subdomain"], "namespace": namespace}
    assert service["spec"]["selector"].items() <= job["template"]["metadata"]["labels"].items()
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == service["spec"]["selector"]
    assert objects["PriorityClass"]["metadata"]["name"] == pod["priorityClassName"]
    assert (objects["PriorityClass"]["preemptionPolicy"], objects["PriorityClass"]["value"]) == ("Never", -1000)
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert "/dev/shm" in {one["mountPath"] for one in container["volumeMounts"]}
    assert container["command"][0] == "commwatch"
    build_parser().parse_args(container["command"][1:])

    variables = {name: value.replace("$(JOB_NAME)", "probe-29") for name, value in given.items()}
    here = place({**variables, "JOB_COMPLETION_INDEX": "3"}, Own(names=("gpu04", "gpu04.site")))
    assert (here.engine, here.rank, here.size) == ("kubernetes", 3, 16)
    assert here.host == f"probe-29-0.{pod['subdomain']}.{namespace}.svc"
