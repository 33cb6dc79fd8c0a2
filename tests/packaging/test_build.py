"""What packages are built of, and which Python of a node they run on."""

from __future__ import annotations

import runpy
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = runpy.run_path(str(ROOT / "packaging/build.py"))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole search path."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(file: Path, text: str = "") -> None:
    """Write a program of the shell."""
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)


def test_a_missing_program_is_one_line_and_the_rest_is_built(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names it before the first step, which takes minutes."""
    program(programs / "dpkg-deb")
    assert BUILD["buildable"]() == ["deb"]
    assert capsys.readouterr().err == "no rpm is built: there is no rpmbuild here (package rpm, rpm-build in RHEL)\n"
    program(programs / "rpmbuild")
    assert BUILD["buildable"]() == ["deb", "rpm"]
    assert BUILD["buildable"]("rpm") == ["rpm"]
    assert capsys.readouterr().err == ""


def environment(folder: Path, **files: str) -> Path:
    """What pip installs for one Python."""
    for name, text in {"bin/tool": "", "m-1.dist-info/WHEEL": str(folder), **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def test_the_packages_of_all_pythons_share_one_folder(tmp_path: Path) -> None:
    """Each brings its compiled modules; a file of which two have their own ends the build."""
    shared = {"m/__init__.py": "", "m-1.dist-info/METADATA": "Name: m"}
    for name in ("310", "311"):
        made = environment(tmp_path / name, **shared, **{f"m/_c.cpython-{name}-x86_64-linux-gnu.so": name})
        BUILD["overlay"](made, tmp_path / "packages")
    files = (file for file in (tmp_path / "packages").rglob("*") if file.is_file())
    compiled = {f"m/_c.cpython-{name}-x86_64-linux-gnu.so" for name in ("310", "311")}
    assert {str(file.relative_to(tmp_path / "packages")) for file in files} == shared.keys() | compiled
    other = environment(tmp_path / "312", **{**shared, "m/__init__.py": "import sys"})
    with pytest.raises(SystemExit, match=r"m/__init__\.py differs between Pythons"):
        BUILD["overlay"](other, tmp_path / "packages")


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        pytest.param({"python3": "3.11"}, "python3", id="Debian 12"),
        pytest.param({"python3": "3.9", "python3.11": "3.11", "python3.12": "3.12"}, "python3.12", id="RHEL 9"),
        pytest.param({"python3": "3.15", "python3.10": "3.10"}, "python3.10", id="too new beside one that is not"),
        pytest.param({"python3": "3.9"}, None, id="too old"),
        pytest.param({}, None, id="none"),
    ],
)
def test_a_package_runs_on_a_python_that_it_has_modules_for(
    tmp_path: Path, installed: dict[str, str], chosen: str | None
) -> None:
    """The distribution's own first, then the newest; compiled code of another is removed.

    The caller's search path and umask do not matter: root runs nothing of it, and the daemon's user reads the code.
    """
    home, pythons = tmp_path / "home", tmp_path / "pythons"
    pythons.mkdir()
    (home / "bin").mkdir(parents=True)
    for folder in (
        "lib/site-packages/m/__pycache__",
        "lib/site-packages/gone/__pycache__",
        "lib/python3.10/site-packages",
    ):
        (home / folder).mkdir(parents=True)
    (home / "lib/site-packages/m/__init__.py").touch()
    (home / "lib/python3.10/site-packages/commwatch.pth").touch()
    compiled = tmp_path / "compiled"
    for name, version in installed.items():
        program(pythons / name, f'case "$*" in *compileall*) : > {compiled} ;; *) echo {version} ;; esac')
    of_the_caller = tmp_path / "of the caller"
    of_the_caller.mkdir()
    for name in ("find", "ln", "rm"):
        program(of_the_caller / name, "echo hostile")
    script = tmp_path / "use-python"
    text = BUILD["use_python"]()
    script.write_text(text.replace("/opt/commwatch", str(home)).replace("/usr/bin/", f"{pythons}/"), encoding="utf-8")
    done = subprocess.run(
        ["/bin/sh", script], capture_output=True, text=True, umask=0o077, env={"PATH": f"{of_the_caller}"}
    )
    assert (done.returncode, done.stdout) == (int(chosen is None), "")
    if chosen is None:
        assert done.stderr == "commwatch: no Python of 3.14 3.13 3.12 3.11 3.10 is in /usr/bin\n"
        assert not (home / "bin/python3").is_symlink()
    else:
        assert (home / "bin/python3").readlink() == pythons / chosen
        assert stat.S_IMODE(compiled.stat().st_mode) == 0o644
        assert sorted(path.name for path in (home / "lib/site-packages").rglob("*")) == ["__init__.py", "m"]
