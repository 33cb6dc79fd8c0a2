"""Debs and rpms: two builds with the same bytes, nothing for lintian and rpmlint, installed in bare Debians."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from commwatch import __version__
from support.waiting import until

ROOT = Path(__file__).parents[2]
NEEDED = ("dpkg-deb", "lintian", "rpmbuild", "rpmlint", "mmdebstrap")

pytestmark = [
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)), reason=f"apt-get install {' '.join(NEEDED[1:])} (rpmbuild: rpm)"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="a root file system is made by root"),
]


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def build(folder: Path, *options: str) -> list[Path]:
    """The packages that one build gives for this machine; of one date, whatever is committed meanwhile."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(int(time.time())))
    machine = ("--machine", platform.machine())
    printed = run(sys.executable, ROOT / "packaging/build.py", *machine, "--output", folder, *options).stdout
    return [path for path in map(Path, printed.splitlines()) if path.suffix in (".deb", ".rpm")]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both packages, by their suffix."""
    return {path.suffix: path for path in build(tmp_path_factory.mktemp("first"))}


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare Debian 12 or 13 with Python 3.11 or 3.13 and systemd's sysusers, no more."""
    folder = tmp_path_factory.mktemp("debian") / "root"
    made = run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--include=python3,systemd-standalone-sysusers,passwd",
        request.param, folder, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no Debian mirror can be reached: {made.stderr[-200:]}")
    return folder


def inside(root: Path, *command: str, check: bool = True) -> str:
    """What a program prints inside the root."""
    done = run("chroot", root, *command, check=check)
    return done.stdout + done.stderr


def install(root: Path, package: Path) -> str:
    """Install a package inside the root."""
    shutil.copy(package, root / "tmp" / package.name)
    return inside(root, "dpkg", "--install", f"/tmp/{package.name}")


def scraped(root: Path, folder: Path) -> str:
    """A page of the installed daemon, run by its own user on a simulated node."""
    state, log = root / "tmp/state", folder / "log"
    state.mkdir()
    state.chmod(0o777)
    command = ["commwatch", "run", "--simulate=h100x8", "--path.state=/tmp/state", "--web.listen-address=127.0.0.1:0"]
    run("mount", "--bind", "/proc", root / "proc")
    try:
        with log.open("w", encoding="utf-8") as output:
            daemon = subprocess.Popen(
                ["chroot", "--userspec=commwatch:commwatch", root, *command], stdout=output, stderr=output
            )
        try:
            serving = r'"addresses": \["([^"]+)"'
            (address,) = until(lambda: re.findall(serving, log.read_text()), describe=log.read_text)
            until(lambda: fetched(f"http://{address}/readyz") is not None, describe=log.read_text)
            return fetched(f"http://{address}/metrics") or ""
        finally:
            daemon.terminate()
            daemon.wait()
    finally:
        run("umount", root / "proc")


def fetched(address: str) -> str | None:
    """What is served there; None where it is not ready."""
    try:
        with urllib.request.urlopen(address) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return None


def test_two_builds_give_the_same_bytes(packages: dict[str, Path], tmp_path: Path) -> None:
    """Whoever builds a commit gets what we get."""
    for again in build(tmp_path):
        assert again.read_bytes() == packages[again.suffix].read_bytes(), again.name


def test_the_checkers_of_the_distributions_find_nothing(packages: dict[str, Path]) -> None:
    """What is meant is overridden in packaging/, with the reason."""
    found = run("lintian", "--allow-root", packages[".deb"], check=False).stdout
    assert found == ""
    checked = run("rpmlint", "-c", ROOT / "packaging/rpm/rpmlint.toml", packages[".rpm"], check=False).stdout
    assert "0 errors, 0 warnings" in checked, checked


def test_a_deb_is_installed_upgraded_removed_and_purged(packages: dict[str, Path], root: Path, tmp_path: Path) -> None:
    """The program runs, a changed configuration survives the upgrade, and a purge leaves nothing behind."""
    before = {path for path in root.rglob("*") if path.is_relative_to(root / "etc") or "commwatch" in path.name}
    install(root, packages[".deb"])
    assert inside(root, "commwatch", "--version") == f"commwatch {__version__}\n"
    assert "commwatch" in (root / "etc/passwd").read_text()
    assert "8 × H100" in inside(root, "commwatch", "simulate", "h100x8")
    inside(root, "commwatch", "check-config", "--config.file=/etc/commwatch/commwatch.yaml")
    inside(root, "commwatch", "rules", "--output", "/tmp/rules")

    assert "commwatch_gpu_info{" in scraped(root, tmp_path)

    configuration = root / "etc/commwatch/commwatch.yaml"
    configuration.write_text("log: {level: debug}\n", encoding="utf-8")
    (newer,) = build(tmp_path, "--only", "deb", "--version-suffix", "+site1")
    install(root, newer)
    assert configuration.read_text(encoding="utf-8") == "log: {level: debug}\n"
    assert f"{__version__}+site1" in inside(root, "dpkg-query", "--show", "commwatch")

    inside(root, "dpkg", "--remove", "commwatch")
    assert configuration.exists()
    assert not (root / "opt/commwatch").exists()
    inside(root, "dpkg", "--purge", "commwatch")
    after = {path for path in root.rglob("*") if path.is_relative_to(root / "etc") or "commwatch" in path.name}
    left = {str(path.relative_to(root)) for path in after - before}
    assert {
        path for path in left if not path.startswith(("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "tmp/"))
    } == set()


def test_the_rpm_holds_the_same_files(packages: dict[str, Path]) -> None:
    """Both install one tree; the configuration is kept, and the scripts are there."""
    names = run("dpkg-deb", "--contents", packages[".deb"]).stdout.splitlines()
    of_deb = {line.split()[5].removeprefix(".") for line in names if not line.startswith("d")}
    of_rpm = set(run("rpm", "-qlp", packages[".rpm"]).stdout.splitlines())
    only_deb = {"/usr/share/doc/commwatch/changelog.gz", "/usr/share/lintian/overrides/commwatch"}
    assert of_deb - only_deb <= of_rpm
    kept = run("rpm", "-qcp", packages[".rpm"]).stdout.split()
    assert kept == ["/etc/commwatch/commwatch.yaml", "/etc/default/commwatch"]
    scripts = run("rpm", "-qp", "--scripts", packages[".rpm"]).stdout
    assert all(name in scripts for name in ("postinstall", "preuninstall", "postuninstall", "posttrans"))
