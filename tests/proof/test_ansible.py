"""The Ansible role, played with a local connection inside a Debian 12 that is booted, with our own deb."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from proof import test_booted
from proof.test_packages import build, run
from support.booted import Booted, booted
from support.daemon import ROOT

pytestmark = test_booted.pytestmark

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
    """A node that Ansible sets up."""

    def __init__(self, node: Booted) -> None:
        self.node = node

    def play(self, **changes: Any) -> str:
        """What the playbook prints with these values."""
        (self.node.root / "srv/values.json").write_text(json.dumps({**VALUES, **changes}))
        command = "cd /srv && ansible-playbook -i inventory packaging/ansible/playbook.yml -e @values.json"
        return self.node.run("env", "LC_ALL=C.UTF-8", "sh", "-c", command, check=False)

    def read(self, path: str) -> str:
        """A file of it."""
        return (self.node.root / path).read_text()

    def shown(self, *properties: str) -> list[str]:
        """Of the daemon's unit."""
        return self.node.shown("commwatch.service", *properties)


def counts(played: str) -> dict[str, int]:
    """The play's recap."""
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", played.rpartition("RECAP")[2])}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With Ansible, this checkout's role and its deb."""
    folder = tmp_path_factory.mktemp("ansible")
    root = folder / "root"
    made = run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=apt",
        "--include=ansible-core,python3-apt,systemd,systemd-sysv,dbus,iproute2,procps,passwd,xz-utils", "bookworm",
        root, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no Debian mirror can be reached: {made.stderr[-200:]}")
    [package] = build(folder, "--only", "deb")
    shutil.copy(package, root / "srv/commwatch.deb")
    for name in ("ansible", "slurm"):
        shutil.copytree(ROOT / "packaging" / name, root / "srv/packaging" / name, symlinks=True)
    (root / "srv/inventory").write_text(INVENTORY)
    (root / "etc/slurm").mkdir()
    with booted(root) as node:
        yield Machine(node)


def test_a_node_is_set_up_and_a_second_play_changes_nothing(machine: Machine) -> None:
    """Package, configuration, flags, unit and scripts are there; the daemon runs with them, and after the next boot."""
    first = machine.play()
    [pid] = machine.shown("MainPID")
    second = machine.play()

    assert counts(first)["failed"] == 0, first
    assert yaml.safe_load(machine.read("etc/commwatch/commwatch.yaml")) == {
        **VALUES["commwatch_config"], "thresholds": "/etc/commwatch/thresholds.yaml",
    }  # fmt: skip
    assert 'ARGS="--log.level=debug"\nSLURM_CONF="/opt/slurm/etc/slurm.conf"' in machine.read("etc/default/commwatch")
    assert "[Service]\nMemoryMax=32G\n" in machine.read("etc/systemd/system/commwatch.service.d/ansible.conf")
    assert os.access(machine.node.root / "etc/slurm/commwatch-prolog.sh", os.X_OK)
    assert machine.node.run("commwatch", "check-config").startswith("what")
    assert counts(second)["changed"] == 0, second
    thirty_two_gibibytes = str(32 * 2**30)
    assert machine.shown("ActiveState", "UnitFileState", "MemoryMax", "MainPID") == [
        "active", "enabled", thirty_two_gibibytes, pid,
    ]  # fmt: skip
    assert "--log.level=debug" in machine.node.run("cat", f"/proc/{pid}/cmdline")


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
    assert counts(machine.play())["failed"] == 0
    before = machine.read("etc/commwatch/commwatch.yaml")

    failed = machine.play(**changes)

    assert counts(failed)["failed"] == 1
    assert why in failed
    assert machine.read("etc/commwatch/commwatch.yaml") == before
    assert machine.shown("ActiveState") == ["active"]


def test_a_node_without_any_value_has_the_defaults(machine: Machine) -> None:
    """The file is empty, and that is a configuration, with which the daemon is started again."""
    played = machine.play(**{name: type(value)() for name, value in VALUES.items() if name != "commwatch_package"})

    assert counts(played)["failed"] == 0, played
    assert yaml.safe_load(machine.read("etc/commwatch/commwatch.yaml")) == {}
    assert machine.shown("ActiveState", "Result") == ["active", "success"]


LINTER = shutil.which("ansible-lint")


@pytest.mark.skipif(LINTER is None, reason="pip install ansible-lint")
def test_the_role_is_clean() -> None:
    """By the rules for production."""
    done = run(str(LINTER), "--offline", "--profile", "production", ROOT / "packaging/ansible", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
