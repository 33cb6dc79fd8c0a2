"""How our processes start: where they stand, what they inherit, what they import; and that there is no other way."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commwatch.caller import root_only, search_path, temporary_folder
from commwatch.children import PIPE, clean_environment, find_program, own_module, start
from commwatch.config.settings import Config
from commwatch.config.yaml_file import load_config
from support.passes import in_one_pass

ROOT = Path(__file__).parents[2]
_SHOW = """
import json, os, pathlib
links = [os.readlink(one) for one in pathlib.Path("/proc/self/fd").iterdir() if one.is_symlink() and one.exists()]
links = [one for one in links if not one.startswith("/proc/")]
print(json.dumps([os.getcwd(), sorted(os.environ), links, os.getsid(0) == os.getpid()]))
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root is more careful than others")


def test_a_child_stands_in_the_root_folder_and_inherits_nothing_but_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No descriptor, no variable, no session of the parent."""
    monkeypatch.chdir(tmp_path)
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "PYTHONPATH", "HOME", "TMPDIR", "COMMWATCH_PATH_STATE"):
        monkeypatch.setenv(name, str(tmp_path))
    with (tmp_path / "held").open("wb") as held, (tmp_path / "given").open("wb") as given:
        os.set_inheritable(held.fileno(), True)
        command = (sys.executable, "-c", _SHOW)
        child = start(command, clean_environment(os.environ), stdout=PIPE, descriptors=[given.fileno()])
        printed, _ = child.communicate()
    folder, variables, links, leads = json.loads(printed)
    assert str(tmp_path / "given") in links
    assert {link for link in links if link.startswith("/")} == {"/dev/null", str(tmp_path / "given")}
    assert (folder, leads) == ("/", True)
    assert set(variables) <= {"LC_ALL", "PATH", "LD_LIBRARY_PATH", "LC_CTYPE"}


def test_a_module_of_ours_imports_from_where_this_process_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And from nowhere else: neither its own folder, nor the current one, nor what the environment names."""
    module = tmp_path / "ours"
    module.mkdir()
    (module / "shows_itself.py").write_text(
        "import json, sys\nprint(json.dumps([sys.path, sys.argv[1:], sys.flags.isolated, __name__]))\n"
    )
    monkeypatch.setattr("sys.path", [*sys.path, str(module), "relative", ""])
    child = start(own_module("shows_itself", "--json", ""), {"PYTHONPATH": str(tmp_path)}, stdout=PIPE)
    printed, _ = child.communicate()

    path = [one for one in sys.path if one not in ("relative", "")]
    assert json.loads(printed) == [path, ["--json", ""], 1, "__main__"]


def test_a_relative_path_is_one_of_the_callers_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Children that stand elsewhere read it there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "commwatch.yaml").write_text(
        "paths: {sysfs: sys, procfs: proc}\n"
        "sources: {kernel_log: {path: kmsg}}\n"
        "probes: {kubelet_socket: ../kubelet.sock}\n"
    )
    config = load_config(Path("commwatch.yaml"))

    assert (config.paths.sysfs, config.paths.procfs) == (f"{tmp_path}/sys", f"{tmp_path}/proc")
    assert config.sources.kernel_log.path == f"{tmp_path}/kmsg"
    assert config.probes.kubelet_socket == f"{tmp_path}/../kubelet.sock"
    assert load_config(None) == Config()


@as_root
@pytest.mark.parametrize(
    ("owner", "mode", "above", "holds"),
    [
        (0, 0o755, 0o755, True),
        (0, 0o755, 0o1777, True),
        (0, 0o775, 0o755, True),
        (65534, 0o755, 0o755, False),
        (0, 0o777, 0o755, False),
        (0, 0o1777, 0o755, False),
        (0, 0o755, 0o777, False),
    ],
    ids=["root's", "below a sticky one", "of root's group", "another's", "open", "sticky", "below an open one"],
)
def test_root_finds_programs_in_folders_that_root_alone_can_change(
    owner: int, mode: int, above: int, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above count too, since whoever owns one can put another folder in its place."""
    folder = tmp_path / "above" / "bin"
    folder.mkdir(parents=True)
    (folder / "of-this-test").touch(mode=0o755)
    os.chown(folder, owner, 0)
    folder.chmod(mode)
    folder.parent.chmod(above)
    monkeypatch.setenv("PATH", f".:relative:{folder}")

    assert find_program("of-this-test") == (str(folder / "of-this-test") if holds else None)
    assert search_path(os.environ) == (str(folder) if holds else os.defpath)


@as_root
def test_a_link_of_another_user_is_not_followed_later(tmp_path: Path) -> None:
    """Where it leads now is what counts; where it leads to his own folder it is nothing."""
    (tmp_path / "safe").mkdir()
    (tmp_path / "his").mkdir()
    os.chown(tmp_path / "his", 65534, 65534)
    link = tmp_path / "his" / "link"
    link.symlink_to(tmp_path / "safe")
    assert root_only(str(link)) == str(tmp_path / "safe")
    link.unlink()
    link.symlink_to(tmp_path / "his")
    assert root_only(str(link)) == ""
    assert root_only(str(tmp_path / "none")) == root_only("relative") == root_only("") == ""


@as_root
@pytest.mark.parametrize(
    ("owner", "mode", "used"), [(0, 0o700, True), (0, 0o1777, True), (0, 0o777, False), (65534, 0o700, False)]
)
def test_roots_temporary_files_lie_where_nobody_replaces_them(
    owner: int, mode: int, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TMPDIR only if it is root's, or sticky."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    os.chown(folder, owner, 0)
    folder.chmod(mode)
    monkeypatch.setenv("TMPDIR", str(folder))

    assert temporary_folder() == (str(folder) if used else "/tmp")


@in_one_pass(
    "code",
    [
        "import subprocess", "from subprocess import Popen", "import sys\nprint(sys.executable)",
        "import os\nos.system('id')", "import os\nos.execv('/bin/id', ['id'])", "from os import posix_spawn",
        "import asyncio\nasyncio.create_subprocess_exec('id')", "import multiprocessing", "import pty\npty.spawn('id')",
        "import runpy",
    ],
)  # fmt: skip
@in_one_pass("place, code_of_ruff", [("daemon/commwatch/diagnosis/x.py", 1), ("daemon/commwatch/children.py", 0)])
def test_no_other_file_starts_a_process(code: str, place: str, code_of_ruff: int) -> None:
    """``make lint`` refuses it."""
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [ruff, "check", "--quiet", "--select", "TID251", "--stdin-filename", place, "-"],
        cwd=ROOT, input=code, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == code_of_ruff, done.stdout + done.stderr


def test_no_other_file_runs_a_module_by_its_name() -> None:
    """``-m`` as an argument is Python's, but for one of nvidia-smi's."""
    found = set()
    for package in ("daemon/commwatch", "daemon/commwatch_rehearsal", "exporters/commwatch_exporters"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if '"-m"' in text else ():
                words = [one.value for one in ast.iter_child_nodes(node) if isinstance(one, ast.Constant)]
                if "-m" in words:
                    found.add((file.name, words[0]))
    assert found == {("bundle_machine.py", "nvidia-smi")}
