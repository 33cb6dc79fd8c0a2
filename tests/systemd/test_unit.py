"""The systemd unit and the user it runs as, judged by systemd's own programs."""

from __future__ import annotations

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
INSTALL = (Path(__file__).parents[2] / "docs" / "using" / "install.md").read_text(encoding="utf-8")
EXPOSURE_LIMIT = 21
"""Tenths: the unit's exposure score is at most 2.1. docs/using/install.md says what the rest is for."""


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
    """The exposure score is at most 2.1, as the installation page says; and no more."""
    result = exposure(UNIT)

    assert result.returncode == 0, result.stdout
    assert f"says {EXPOSURE_LIMIT / 10} of 10" in INSTALL


@pytest.mark.systemd
def test_a_site_can_confine_it_further(tmp_path: Path) -> None:
    """The drop-in of the installation page for addresses brings 2.0, giving up the kernel log 1.8, as the page says."""
    text = UNIT.read_text(encoding="utf-8")
    (addresses,) = re.findall(r"```ini\n\[Service\]\n(IPAddressDeny=.*?)```", INSTALL, re.DOTALL)
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("[Install]", f"{addresses}\n[Install]"), encoding="utf-8")
    assert exposure(unit, 20).returncode == 0
    text = text.replace("DeviceAllow=/dev/kmsg r\n", "")
    for name, value in {"AmbientCapabilities": "", "CapabilityBoundingSet": "", "ProtectKernelLogs": "yes"}.items():
        text = re.sub(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
    unit.write_text(text, encoding="utf-8")
    assert exposure(unit, 18).returncode == 0
    assert "gets to 2.0 with this drop-in" in " ".join(INSTALL.split())
    assert "gives up the kernel log is at 1.8" in " ".join(INSTALL.split())


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


def test_the_gpus_stay_visible() -> None:
    """Only GPUs, verbs and the kernel log are open; /proc keeps the driver's folder and the schedulers' processes."""
    assert settings("PrivateDevices") == ["no"]
    assert settings("DevicePolicy") == ["closed"]
    assert settings("DeviceAllow") == ["char-nvidia* rw", "char-infiniband* rw", "/dev/kmsg r"]
    assert settings("ProcSubset") == ["all"]
    assert settings("ProtectProc") == ["default"]


def test_the_kernel_log_can_be_read() -> None:
    """Where it is restricted that takes one capability, which the readers inherit; it is the only one."""
    assert settings("ProtectKernelLogs") == ["no"]
    assert settings("CapabilityBoundingSet") == settings("AmbientCapabilities") == ["CAP_SYSLOG"]


def test_unit_and_shipped_files_fit_together() -> None:
    """The unit reads the files that the installation page puts in place, as the user of the sysusers file."""
    user = re.findall(r"^u (\S+)", asset("systemd/commwatch.sysusers.conf").read_text(encoding="utf-8"), re.MULTILINE)

    assert settings("User") == user
    for path in ("/etc/commwatch/commwatch.yaml", "/etc/default/commwatch", "/usr/bin/commwatch"):
        assert path in UNIT.read_text(encoding="utf-8")
        assert path in INSTALL
