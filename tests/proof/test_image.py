"""The container image, built without a daemon and run: its base is made here, since the test reaches no registry."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.waiting import until

ROOT = Path(__file__).parents[2]
NEEDED = ("buildah", "mmdebstrap", "dpkg-deb", "unshare", "nsenter", "ip")
USER = 65532
# What Debian's slim images leave out; nothing that the daemon needs may be among it.
SLIM = ("path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright", "path-exclude=/usr/share/man/*")

pytestmark = [
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)), reason="apt-get install buildah mmdebstrap iproute2 util-linux"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="a root file system is made by root"),
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="torch of the tests goes into a Debian with Python 3.11"
    ),
]


class Images:
    """buildah with a store of its own, and a base image in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = folder / "context"
        (self.context / "packaging").mkdir(parents=True)
        shutil.copy(ROOT / "packaging/requirements-probe.txt", self.context / "packaging")
        self._store = ("--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs")

    def command(self, *words: str | Path) -> list[str]:
        """A command of buildah on this store."""
        return [str(word) for word in ("buildah", *self._store, *words)]

    def ask(self, *words: str | Path) -> str:
        """What a command of buildah prints."""
        return run(*self.command(*words))

    def make_base(self) -> None:
        """A bare Debian 12 as an image; skips where the machine allows no such thing."""
        archive = self.folder / "base.tar"
        options = [f"--dpkgopt={line}" for line in SLIM]
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *options, "bookworm", archive],
            capture_output=True, text=True,
        )  # fmt: skip
        if made.returncode:
            pytest.skip(f"no Debian mirror can be reached: {made.stderr[-200:]}")
        empty = subprocess.run(self.command("from", "scratch"), capture_output=True, text=True)
        if empty.returncode:
            pytest.skip(f"buildah cannot work on this machine: {empty.stderr[-200:]}")
        container = empty.stdout.strip()
        self.ask("add", "--quiet", container, archive, "/")
        self.ask("commit", "--quiet", "--rm", container, "localhost/base")
        archive.unlink()

    def build(self, target: str, *options: str) -> None:
        """Build a target of the Dockerfile."""
        self.ask(
            "build", "--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/base",
            "--target", target, "--file", ROOT / "packaging/image/Dockerfile", "--tag", f"localhost/{target}",
            *options, self.context,
        )  # fmt: skip

    def settings(self, target: str) -> dict[str, Any]:
        """What an image says of how it is run."""
        read: dict[str, Any] = json.loads(self.ask("inspect", "--type", "image", f"localhost/{target}"))
        settings: dict[str, Any] = read["Docker"]["config"]
        return settings


def run(*command: str | Path) -> str:
    """What a program prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """A store with the target ``core``."""
    made = Images(tmp_path_factory.mktemp("images"))
    try:
        made.make_base()
        run(
            sys.executable, ROOT / "packaging/build.py", "--only", "deb", "--machine", platform.machine(),
            "--output", made.context / "dist",
        )  # fmt: skip
        made.build("core")
        yield made
    finally:
        subprocess.run(made.command("rm", "--all"), capture_output=True)
        shutil.rmtree(made.folder, ignore_errors=True)


@contextmanager
def network() -> Iterator[int]:
    """A network of its own, so that the image's port is free; the process that holds it."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"up\n"
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def daemons(holder: int) -> list[int]:
    """The daemon's main process in this network."""
    own = os.readlink(f"/proc/{holder}/ns/net")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns/net") == own and (entry / "comm").read_text() == "commwatch\n":
                found.append(int(entry.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_the_image_serves_a_node_as_its_own_user_and_stops(images: Images, tmp_path: Path) -> None:
    """By its own entry point and command, not as root; its health check answers, and TERM ends it in order."""
    settings = images.settings("core")
    assert settings["User"] == f"{USER}:{USER}"
    assert list(settings["ExposedPorts"]) == ["28029/tcp"]
    check = settings["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    container = images.ask("from", "--pull-never", "localhost/core").strip()
    with network() as holder:
        entered = [
            "nsenter",
            f"--net=/proc/{holder}/ns/net",
            *images.command("run", "--isolation", "chroot", container),
        ]

        def healthy() -> bool:
            return subprocess.run([*entered, "--", *check[1:]], capture_output=True).returncode == 0

        assert not healthy()
        log = tmp_path / "log"
        with log.open("w", encoding="utf-8") as output:
            started = [*settings["Entrypoint"], *settings["Cmd"], "--simulate=h100x8"]
            daemon = subprocess.Popen([*entered, "--", *started], stdout=output, stderr=output)
        try:
            until(healthy, every=1, describe=log.read_text)
            until(lambda: '"msg": "ready"' in log.read_text(), describe=log.read_text)
            scrape = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:28029/metrics').read().decode())"
            page = run(*entered, "--", "/opt/commwatch/bin/python3", "-c", scrape)
            assert page.count("\ncommwatch_gpu_info{") == 8
            (main,) = daemons(holder)
            assert os.stat(f"/proc/{main}").st_uid == USER
            os.kill(main, signal.SIGTERM)
            assert daemon.wait() == 0, log.read_text()
        finally:
            daemon.kill()
            daemon.wait()


def test_the_image_holds_no_lists_and_no_pip(images: Images) -> None:
    """Only what runs: the package lists and tools of the build are gone."""
    container = images.ask("from", "--pull-never", "localhost/core").strip()
    root = Path(images.ask("mount", container).strip())
    assert list((root / "var/lib/apt/lists").iterdir()) == []
    assert not list(root.glob("opt/commwatch/lib/python*/site-packages/pip"))
    assert not (root / "usr/bin/pip3").exists()
    assert (root / "opt/commwatch/sbom.cdx.json").is_file()


def test_the_probe_image_has_torch(images: Images) -> None:
    """The torch of this environment, installed by the Dockerfile's own step; the daemon's user imports it."""
    version = importlib.metadata.version("torch")
    wheels = images.folder / "wheels"
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, f"torch=={version}"],
        capture_output=True, text=True,
    )  # fmt: skip
    if fetched.returncode:
        pytest.skip(f"torch {version} cannot be downloaded: {fetched.stderr[-200:]}")
    wanted = f"TORCH=--no-index --find-links /wheels torch=={version}"
    images.build("probe", "--volume", f"{wheels}:/wheels:ro", "--build-arg", wanted)
    assert images.settings("probe")["User"] == f"{USER}:{USER}"
    container = images.ask("from", "--pull-never", "localhost/probe").strip()
    entered = images.command("run", "--isolation", "chroot", container, "--")
    command = ["/usr/bin/commwatch", "check-config", "--runtime", "--simulate=h100x8"]
    asked = subprocess.run([*entered, *command], capture_output=True, text=True)
    assert "PyTorch is installed" in asked.stdout, asked.stdout + asked.stderr
    code = "import os, torch; print(os.getuid(), torch.__version__)"
    assert run(*entered, "/opt/commwatch/bin/python3", "-c", code).split() == [str(USER), version]
