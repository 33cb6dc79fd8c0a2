"""The deb and the rpm on booted distributions: systemd starts, watches, reloads, confines and stops the daemon."""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch import __version__
from commwatch.config.settings import DEFAULT_PROBES
from proof import test_packages
from proof.test_packages import build, run
from support.booted import Booted, booted
from support.waiting import until

pytestmark = [
    *test_packages.pytestmark[1:],
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="torch of the tests goes into a Debian with Python 3.11"
    ),
    pytest.mark.skipif(
        not all(map(shutil.which, ("mmdebstrap", "systemd-nspawn"))),
        reason="apt-get install mmdebstrap systemd-container",
    ),
]

UNIT = "commwatch.service"
UBUNTU = ("--components=main,universe", "http://archive.ubuntu.com/ubuntu")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The deb, the rpm and a newer deb, by the names that they have on the nodes."""
    folder = tmp_path_factory.mktemp("packages")
    [newer] = build(folder / "newer", "--only", "deb", "--version-suffix", "+site1")
    return {"newer.deb": newer} | {f"commwatch{package.suffix}": package for package in build(folder)}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("bookworm",), id="Debian 12"),
        pytest.param(("trixie",), id="Debian 13"),
        pytest.param(("jammy", *UBUNTU), id="Ubuntu 22.04"),
        pytest.param(("noble", *UBUNTU), id="Ubuntu 24.04"),
        pytest.param(("resolute", *UBUNTU), id="Ubuntu 26.04"),
    ],
)
def node(
    request: pytest.FixtureRequest, packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Booted]:
    """A booted node with our deb, and an environment of the site's with torch."""
    root = tmp_path_factory.mktemp("booted") / "root"
    suite, *mirror = request.param
    made = run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
        "--include=systemd,systemd-sysv,dbus,iproute2,libseccomp2,procps,python3,rpm", suite, root, *mirror,
        check=False,
    )  # fmt: skip
    if made.returncode:
        keyring = "its keyring is missing (package ubuntu-keyring of Debian 13)"
        pytest.skip(f"no mirror of {suite} can be reached, or {keyring}: {made.stderr[-200:]}")
    for name, package in packages.items():
        shutil.copy(package, root / "srv" / name)
    site = root / "srv/site"
    (site / "bin").mkdir(parents=True)
    (site / "bin/python").symlink_to("/usr/bin/python3")
    (site / "pyvenv.cfg").write_text("home = /usr/bin\n")
    libraries = site / "lib/python3.11/site-packages"
    libraries.mkdir(parents=True)
    options = (
        "--capability=CAP_SYSLOG",  # for its systemd, which opens the kernel log
        f"--bind-ro={sysconfig.get_path('purelib')}:/{libraries.relative_to(root)}",
    )
    with booted(root, options) as node:
        node.run("dpkg", "--install", "/srv/commwatch.deb")
        yield node


def configure(node: Booted, arguments: str, **settings: object) -> None:
    """Write the flags and the configuration, and start the unit again."""
    (node.root / "etc/default/commwatch").write_text(f'ARGS="{arguments}"\n')
    (node.root / "etc/commwatch/commwatch.yaml").write_text(json.dumps(settings))
    node.run("systemctl", "reset-failed", UNIT)  # also those that a person starts count for StartLimitBurst
    node.run("systemctl", "restart", UNIT)


def status(node: Booted, pid: str, field: str) -> str:
    """A field of a process's status, as the kernel shows it."""
    [value] = re.findall(rf"^{field}:\s+(.*)$", node.run("cat", f"/proc/{pid}/status"), re.MULTILINE)
    return str(value)


def test_the_package_starts_the_unit_which_is_confined_as_it_says(node: Booted) -> None:
    """Ready and served at once, enabled for the next boot; its user, no capability, its filter of system calls."""
    state, enabled, restarts, pid, told = node.shown(
        UNIT, "ActiveState", "UnitFileState", "NRestarts", "MainPID", "StatusText"
    )

    assert (state, enabled, restarts) == ("active", "enabled", "0")
    assert re.fullmatch(r"\d+ collectors", told)
    assert "commwatch_build_info{" in node.page("/metrics")
    assert node.run("ps", "-o", "user=", "-p", pid).strip() == "commwatch"
    assert int(status(node, pid, "CapEff"), 16) == int(status(node, pid, "CapBnd"), 16) == 0
    assert (status(node, pid, "NoNewPrivs"), status(node, pid, "Seccomp")) == ("1", "2")
    told = node.run("systemd-analyze", "security", "--no-pager", UNIT)
    assert "exposure level for commwatch.service: 1.8 OK" in told


def test_without_a_kernel_log_the_unit_starts_and_says_what_is_missing(node: Booted) -> None:
    """systemd-nspawn makes no /dev/kmsg: the generator's drop-in takes it out of the unit."""
    configure(node, "", inventory={"expected": {"gpu": 1}})

    missing = 'commwatch_collector_errors_total{collector="kernel_log",reason="not_found"} '
    until(lambda: missing in node.page("/metrics"), describe=lambda: node.journal(UNIT))
    assert node.shown(UNIT, "ActiveState", "StandardInput", "DropInPaths") == [
        "active", "null", "/run/systemd/generator/commwatch.service.d/10-no-kernel-log.conf"
    ]  # fmt: skip


def test_a_daemon_without_any_capability_reads_the_log_that_systemd_opened(node: Booted) -> None:
    """Nobody but root may open it. Beside the daemon the reader of the host alone holds it."""
    node.run("mknod", "--mode=600", "/dev/kmsg", "c", "1", "11")
    if "opened" not in node.run("sh", "-c", ": < /dev/kmsg && echo opened", check=False):
        pytest.skip("the kernel log of this machine cannot be opened")
    try:
        node.run("systemctl", "daemon-reload")
        configure(node, "", inventory={"expected": {"gpu": 1}})

        read = 'commwatch_collector_success{collector="kernel_log"} 1'
        until(lambda: read in node.page("/metrics"), describe=lambda: node.journal(UNIT))
        assert node.shown(UNIT, "StandardInput", "DropInPaths") == ["file", ""]
        pids = [pid for pid, _ in processes(node)]
        assert {status(node, pid, "CapEff") for pid in pids} == {"0" * 16}
        [main] = node.shown(UNIT, "MainPID")
        holders = [pid for pid in pids if "/dev/kmsg" in node.run("ls", "-l", f"/proc/{pid}/fd", check=False)]
        assert [status(node, pid, "Name") for pid in holders if pid != main] == ["commwatch-host"]
        assert main in holders
        for given, verdict in (("/dev/null", "failed"), ("/dev/kmsg", "ok")):
            by_hand = f"runuser -u commwatch -- commwatch check-config --runtime < {given}"
            assert re.search(rf"source kernel_log +{verdict} ", node.run("sh", "-c", by_hand, check=False))
    finally:
        node.run("rm", "/dev/kmsg")
        node.run("systemctl", "daemon-reload")


def test_every_reader_works_within_the_unit(node: Booted) -> None:
    """On a simulated node, whose readers open the files, sockets and processes that those of a real one do."""
    configure(node, "--simulate=h100x8")

    page = node.page("/metrics")
    down = [line for line in page.splitlines() if re.match(r"commwatch_collector_success\{.*\} 0", line)]
    assert down == []
    assert len(page) > 100_000
    assert "commwatch_gpu_info{" in page


def test_a_probe_is_measured_within_the_unit(node: Booted) -> None:
    """Real ranks of torch over gloo, on the site's own interpreter."""
    if "Python 3.11." not in node.run("python3", "--version"):
        pytest.skip("the torch of the tests is for Python 3.11")
    configure(
        node,
        "",
        probes={
            "python": "/srv/site/bin/python",
            "definitions": {**dict.fromkeys(DEFAULT_PROBES), "gloo": {"backend": "gloo"}},
        },
    )

    measured = r"commwatch_probe_last_bus_bandwidth_bytes_per_second{\S+} [1-9]"
    until(lambda: re.search(measured, node.page("/metrics")), describe=lambda: node.journal(UNIT))


def test_a_daemon_that_hangs_is_started_again(node: Booted) -> None:
    """systemd misses its heartbeat, ends it and starts it; its readers end by themselves."""
    configure(node, "--simulate=h100x8")
    [pid] = node.shown(UNIT, "MainPID")
    node.run("kill", "-STOP", pid)

    until(lambda: node.shown(UNIT, "NRestarts", "ActiveState") == ["1", "active"])

    assert "Failed with result 'watchdog'" in node.journal(UNIT)
    [now] = node.shown(UNIT, "MainPID")
    until(lambda: {parent for _, parent in processes(node) if parent != "1"} == {now})


def processes(node: Booted) -> list[tuple[str, str]]:
    """Process and parent of all that run as the unit's user."""
    lines = node.run("ps", "-o", "pid=,ppid=", "-u", "commwatch", check=False).splitlines()
    return [(pid, parent) for pid, parent in map(str.split, lines)]


def test_a_reload_takes_the_new_configuration_and_refuses_a_broken_one(node: Booted) -> None:
    """The process stays, and says in one line what is wrong."""
    configure(node, "--simulate=h100x8")
    [pid] = node.shown(UNIT, "MainPID")
    file = node.root / "etc/commwatch/commwatch.yaml"

    file.write_text("log: {level: debug}\n")
    node.run("systemctl", "reload", UNIT)
    until(lambda: "the new configuration is in force" in node.journal(UNIT))
    file.write_text("log: {levle: debug}\n")
    node.run("systemctl", "reload", UNIT)
    until(lambda: "levle" in node.journal(UNIT))

    assert node.shown(UNIT, "MainPID", "ActiveState") == [pid, "active"]
    assert node.page("/metrics")


def test_a_broken_configuration_does_not_start_and_is_named(node: Booted) -> None:
    """One line with file, line and key; then the unit waits 15 s and tries again, up to five times."""
    (node.root / "etc/commwatch/commwatch.yaml").write_text("log: {levle: debug}\n")

    said = node.run("systemctl", "restart", UNIT, check=False)

    assert "commwatch.service" in said
    assert re.search(r"/etc/commwatch/commwatch.yaml:1: log.levle", node.journal(UNIT))
    node.run("systemctl", "stop", UNIT)


def test_a_socket_of_systemds_is_served_over_a_restart(node: Booted) -> None:
    """As docs/using/endpoint.md says."""
    node.run("systemctl", "stop", UNIT)
    (node.root / "etc/default/commwatch").write_text('ARGS="--simulate=h100x8 --web.systemd-socket"\n')
    (node.root / "etc/commwatch/commwatch.yaml").write_text("{}\n")
    node.run("systemctl", "enable", "--now", "commwatch.socket", UNIT)
    [before] = node.shown(UNIT, "MainPID")

    node.run("systemctl", "restart", "--no-block", UNIT)
    page = node.page("/healthz")

    assert page
    until(lambda: node.shown(UNIT, "ActiveState") == ["active"] and node.shown(UNIT, "MainPID") != [before])
    node.run("systemctl", "disable", "--now", "commwatch.socket")


def test_stopped_upgraded_removed_and_purged(node: Booted) -> None:
    """Nothing is left running; an upgrade starts the new one; a purge leaves no state behind."""
    configure(node, "--simulate=h100x8")
    node.run("systemctl", "stop", UNIT)
    assert node.shown(UNIT, "Result", "ActiveState") == ["success", "inactive"]
    assert processes(node) == []
    node.run("systemctl", "start", UNIT)

    node.run("dpkg", "--force-confold", "--install", "/srv/newer.deb")
    until(lambda: f"{__version__}" in node.page("/metrics"))
    assert node.shown(UNIT, "ActiveState", "Result") == ["active", "success"]
    node.run("dpkg", "--remove", "commwatch")
    assert processes(node) == []
    assert node.shown(UNIT, "ActiveState") == ["inactive"]
    node.run("dpkg", "--purge", "commwatch")
    assert not (node.root / "var/lib/commwatch").exists()
    assert not (node.root / "etc/commwatch").exists()


def test_an_rpm_is_installed_upgraded_and_removed(node: Booted) -> None:
    """By Debian's rpm, which runs the package's scripts but knows no package that it could depend on."""
    node.run("rpm", "--install", "--nodeps", "/srv/commwatch.rpm")
    node.run("systemctl", "enable", "--now", UNIT)
    assert "commwatch_build_info{" in node.page("/metrics")
    [before] = node.shown(UNIT, "MainPID")

    node.run("rpm", "--upgrade", "--nodeps", "--replacepkgs", "/srv/commwatch.rpm")
    until(lambda: node.shown(UNIT, "ActiveState") == ["active"] and node.shown(UNIT, "MainPID") != [before])
    node.run("rpm", "--erase", "--nodeps", "commwatch")

    assert processes(node) == []
    assert not (node.root / "opt/commwatch").exists()
