"""The Ansible role, played with a local connection inside a Debian 12 that mmdebstrap makes, with our own deb."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from proof import test_packages
from proof.test_packages import build, inside, run
from support.daemon import ROOT

pytestmark = test_packages.pytestmark

INVENTORY = "[gpu_nodes]\nlocalhost ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n"
VALUES: dict[str, Any] = {
    "commwatch_package": "/srv/commwatch.deb",
    "commwatch_config": {"inventory": {"expected": {"gpu": 8}}, "probes": {"gate": "slurm"}},
    "commwatch_thresholds": {"probe_latency_spike_streak": {"value": 4}},
    "commwatch_arguments": "--log.level=debug",
    "commwatch_environment": {"SLURM_CONF": "/opt/slurm/etc/slurm.conf"},
    "commwatch_service_settings": {"MemoryMax": "32G"},
    "commwatch_slurm_scripts": "/etc/slurm",
}


class Machine:
    """A node that is not booted."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def play(self, **changes: Any) -> subprocess.CompletedProcess[str]:
        """Run the playbook with values."""
        (self.root / "srv/values.json").write_text(json.dumps({**VALUES, **changes}))
        command = "cd /srv && ansible-playbook -i inventory packaging/ansible/playbook.yml -e @values.json"
        return run("chroot", self.root, "env", "LC_ALL=C.UTF-8", "sh", "-c", command, check=False)

    def read(self, path: str) -> str:
        """A file of it."""
        return (self.root / path).read_text()


def counts(played: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The play's recap."""
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", played.stdout.rpartition("RECAP")[2])}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """With Ansible, this checkout's role and its deb."""
    folder = tmp_path_factory.mktemp("ansible")
    root = folder / "root"
    made = run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=apt",
        "--include=ansible-core,python3-apt,systemd,passwd,xz-utils,init-system-helpers", "bookworm", root, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no Debian mirror can be reached: {made.stderr[-200:]}")
    [package] = build(folder, "--only", "deb")
    shutil.copy(package, root / "srv/commwatch.deb")
    for name in ("ansible", "slurm"):
        shutil.copytree(ROOT / "packaging" / name, root / "srv/packaging" / name, symlinks=True)
    (root / "srv/inventory").write_text(INVENTORY)
    (root / "etc/slurm").mkdir()
    return Machine(root)


def test_a_node_is_set_up_and_a_second_play_changes_nothing(machine: Machine) -> None:
    """Package, configuration, flags, unit and scripts are there; the daemon starts at the next boot."""
    first, second = machine.play(), machine.play()

    assert first.returncode == 0, first.stdout + first.stderr
    assert yaml.safe_load(machine.read("etc/commwatch/commwatch.yaml")) == {
        **VALUES["commwatch_config"], "thresholds": "/etc/commwatch/thresholds.yaml",
    }  # fmt: skip
    assert 'ARGS="--log.level=debug"\nSLURM_CONF="/opt/slurm/etc/slurm.conf"' in machine.read("etc/default/commwatch")
    assert "[Service]\nMemoryMax=32G\n" in machine.read("etc/systemd/system/commwatch.service.d/ansible.conf")
    assert os.access(machine.root / "etc/slurm/commwatch-prolog.sh", os.X_OK)
    assert (machine.root / "etc/systemd/system/multi-user.target.wants/commwatch.service").is_symlink()
    assert inside(machine.root, "commwatch", "check-config").startswith("what")
    assert counts(second)["changed"] == 0, second.stdout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"commwatch_config": {"probes": {"gaet": "idle"}}}, "gaet"),
        ({"commwatch_config": "gate: idle"}, "commwatch_config"),
    ],
    ids=["a setting that is none", "a text"],
)
def test_a_mistake_stops_the_play_and_the_node_keeps_what_it_has(
    machine: Machine, changes: dict[str, Any], why: str
) -> None:
    """commwatch says where it is, before the file is in its place."""
    assert machine.play().returncode == 0
    before = machine.read("etc/commwatch/commwatch.yaml")

    failed = machine.play(**changes)

    assert failed.returncode != 0
    assert why in failed.stdout
    assert machine.read("etc/commwatch/commwatch.yaml") == before


def test_a_node_without_any_value_has_the_defaults(machine: Machine) -> None:
    """The file is empty, and that is a configuration."""
    played = machine.play(**{name: type(value)() for name, value in VALUES.items() if name != "commwatch_package"})

    assert played.returncode == 0, played.stdout
    assert yaml.safe_load(machine.read("etc/commwatch/commwatch.yaml")) == {}


LINTER = shutil.which("ansible-lint")


@pytest.mark.skipif(LINTER is None, reason="pip install ansible-lint")
def test_the_role_is_clean() -> None:
    """By the rules for production."""
    done = run(str(LINTER), "--offline", "--profile", "production", ROOT / "packaging/ansible", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
