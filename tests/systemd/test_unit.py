"""The systemd unit and the user it runs as, judged by systemd's own programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commwatch.config.assets import asset
from commwatch.config.settings import Web
from support.waiting import PATIENCE_SECONDS

UNIT = asset("systemd/commwatch.service")
SOCKET = asset("systemd/commwatch.socket")
GENERATOR = asset("systemd/commwatch.generator")
INSTALL = (Path(__file__).parents[2] / "docs" / "using" / "install.md").read_text(encoding="utf-8")
EXPOSURE_LIMIT = 18
"""Tenths: the unit's exposure score is at most 1.8. docs/using/install.md says what the rest is for."""


def settings(name: str) -> list[str]:
    """The values of one setting of the unit, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def exposure(unit: Path, limit: int = EXPOSURE_LIMIT) -> subprocess.CompletedProcess[str]:
    """Judge a unit's exposure; 0 when it is within the limit."""
    return subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={limit}", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd-analyze verify has nothing to say about the unit, once its program exists."""
    text = UNIT.read_text(encoding="utf-8").replace("/usr/bin/commwatch", sys.executable)
    unit = tmp_path / "commwatch.service"
    unit.write_text(text, encoding="utf-8")

    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.systemd
def test_systemd_accepts_the_socket(tmp_path: Path) -> None:
    """systemd-analyze verify has nothing to say about the socket unit beside the service that it starts."""
    service = UNIT.read_text(encoding="utf-8").replace("/usr/bin/commwatch", sys.executable)
    (tmp_path / UNIT.name).write_text(service, encoding="utf-8")
    (tmp_path / SOCKET.name).write_text(SOCKET.read_text(encoding="utf-8"), encoding="utf-8")

    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / SOCKET.name)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip

    assert (result.returncode, result.stderr) == (0, "")


def test_the_socket_has_the_port_of_the_daemon() -> None:
    """Whoever goes over to the socket unit is scraped at the same port."""
    (port,) = re.findall(r"^ListenStream=(\d+)$", SOCKET.read_text(encoding="utf-8"), re.MULTILINE)

    assert (f":{port}",) == Web().listen_addresses


@pytest.mark.systemd
def test_the_unit_is_confined() -> None:
    """The exposure score is at most 1.8, as the installation page says; and no more."""
    result = exposure(UNIT)

    assert result.returncode == 0, result.stdout
    assert f"says {EXPOSURE_LIMIT / 10} of 10" in INSTALL


@pytest.mark.systemd
def test_an_unconfined_unit_is_refused(tmp_path: Path) -> None:
    """The limit means something: without a user and a system call filter the same unit is over it."""
    text = UNIT.read_text(encoding="utf-8")
    unit = tmp_path / "commwatch.service"
    unit.write_text(re.sub(r"^(User|Group|SystemCallFilter|Protect\w+)=.*\n", "", text, flags=re.MULTILINE))

    assert exposure(unit).returncode != 0


@pytest.mark.systemd
def test_the_user_can_be_made() -> None:
    """systemd-sysusers reads the user's description and would make user and group."""
    result = subprocess.run(
        ["systemd-sysusers", "--dry-run", str(asset("systemd/commwatch.sysusers.conf"))],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )

    assert result.returncode == 0, result.stderr


def test_a_worker_inside_the_driver_is_never_killed() -> None:
    """Only the main process is signalled, and a probe killed for memory does not stop the unit."""
    assert settings("KillMode") == ["process"]
    assert settings("OOMPolicy") == ["continue"]


def test_no_service_of_the_driver_is_started() -> None:
    """Starting one sets the persistence mode or the NVSwitches, also at each restart of the unit."""
    assert settings("After") == ["nvidia-persistenced.service nvidia-fabricmanager.service"]
    assert settings("Wants") == settings("Requires") == []


def test_the_gpus_stay_visible() -> None:
    """GPUs, verbs and, for systemd, the kernel log are open; /proc keeps the driver's folder and others' processes."""
    assert settings("PrivateDevices") == ["no"]
    assert settings("DevicePolicy") == ["closed"]
    assert settings("DeviceAllow") == ["char-195 rw", "char-nvidia* rw", "char-infiniband* rw", "/dev/kmsg r"]
    assert settings("ProcSubset") == ["all"]
    assert settings("ProtectProc") == ["default"]


def test_the_kernel_log_comes_from_systemd_and_no_capability_is_left() -> None:
    """It is opened for the daemon, which could not open it and needs nothing else."""
    assert settings("StandardInput") == ["file:/dev/kmsg"]
    assert settings("ProtectKernelLogs") == ["yes"]
    assert settings("CapabilityBoundingSet") == [""]
    assert settings("AmbientCapabilities") == []


def calls_of(group: str) -> set[str]:
    """The system calls of a group, as this systemd has them."""
    listed = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", group],
        capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS,
    ).stdout.split("\n")[1:]  # fmt: skip
    names = {name for line in listed if (name := line.strip()) and not name.startswith("#")}
    return names.union(*(calls_of(name) for name in names if name.startswith("@")))


@pytest.mark.systemd
def test_no_process_of_a_job_can_be_halted_or_traced() -> None:
    """The filter leaves out the calls of debuggers. Signals and reading another process's memory need its user or a
    capability: the unit has neither."""
    allowed, *denied = settings("SystemCallFilter")

    assert allowed == "@system-service"
    assert denied == ["~@privileged"]
    assert not calls_of(allowed) & {"ptrace", "perf_event_open", "pidfd_getfd"}
    assert "ptrace" in calls_of("@debug")
    assert settings("User") == ["commwatch"]
    assert settings("CapabilityBoundingSet") == [""]
    assert settings("NoNewPrivileges") == ["yes"]


def generated(tmp_path: Path, log: Path) -> list[str]:
    """What the generator makes where this is the kernel log: the files, and the text of the last."""
    folder = tmp_path / "generated"
    folder.mkdir()
    text = GENERATOR.read_text(encoding="utf-8").replace("/dev/kmsg", str(log))
    done = subprocess.run(
        ["/bin/sh", "-c", text, "sh", str(folder)], capture_output=True, text=True, start_new_session=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [*(str(path.relative_to(folder)) for path in files), *(path.read_text() for path in files)]


def test_the_unit_is_left_alone_where_there_is_a_kernel_log(tmp_path: Path) -> None:
    """Another device that can be opened stands in for it."""
    assert os.access(GENERATOR, os.X_OK)
    assert generated(tmp_path, Path("/dev/null")) == []


@pytest.mark.parametrize("kind", ["nothing", "no device", "cannot be opened"])
def test_where_no_kernel_log_can_be_opened_the_unit_starts_without(tmp_path: Path, kind: str) -> None:
    """A drop-in takes it out: a start would end with 208/STDIN."""
    log = tmp_path / "kmsg"
    if kind == "no device":
        log.touch()
    elif kind == "cannot be opened":
        log = Path("/dev/tty")  # a device that no process without a terminal can open

    name, text = generated(tmp_path, log)

    assert name == f"{UNIT.name}.d/10-no-kernel-log.conf"
    assert text == "[Service]\nStandardInput=null\n"


@pytest.mark.shellcheck
def test_shellcheck_has_nothing_to_say_of_the_generator() -> None:
    """It is read by sh at each boot."""
    done = subprocess.run(["shellcheck", str(GENERATOR)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout


def test_unit_and_shipped_files_fit_together() -> None:
    """The unit reads the files that the installation page puts in place, as the user of the sysusers file."""
    user = re.findall(r"^u (\S+)", asset("systemd/commwatch.sysusers.conf").read_text(encoding="utf-8"), re.MULTILINE)

    assert settings("User") == user
    for path in ("/etc/commwatch/commwatch.yaml", "/etc/default/commwatch", "/usr/bin/commwatch"):
        assert path in UNIT.read_text(encoding="utf-8")
        assert path in INSTALL
