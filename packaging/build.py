"""Builds the debs and the rpms from the checkout: ``python packaging/build.py --output dist``.

All hold the same tree: an environment of its own under /opt/commwatch, its bill of materials, unit, user,
configuration, man page and completion. Nothing is installed into it whose hash is not in requirements.txt. Two builds
of one commit give the same bytes.

One folder of packages serves every Python of ``PYTHONS``: the wheels of one version differ only in their compiled
modules, and the name of each of these says for which Python and machine it is. So a package is built on any machine
for any other, and ``bin/use-python`` chooses the node's Python when it is installed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import manual
import sbom
from shipped import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
HOME = "opt/commwatch"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Those of Ubuntu 22.04, 24.04 and 26.04, Debian 12 and 13, RHEL 9 and 10."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the machines that packages are for."""
GLIBCS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
"""What the wheels may need; RHEL 9, the oldest, has glibc 2.34."""
LAUNCHER = f"""#!/{HOME}/bin/python3 -I
import sys

from commwatch.__main__ import main

sys.exit(main())
"""
"""Isolated: root takes no code from the current folder, home or ``PYTHON...`` variables of whoever called it."""
SHIPPED = (
    ("systemd/commwatch.yaml", "etc/commwatch/commwatch.yaml"),
    ("systemd/commwatch.default", "etc/default/commwatch"),
    ("systemd/commwatch.service", "usr/lib/systemd/system/commwatch.service"),
    ("systemd/commwatch.socket", "usr/lib/systemd/system/commwatch.socket"),
    ("systemd/commwatch.generator", "usr/lib/systemd/system-generators/commwatch"),
    ("systemd/commwatch.sysusers.conf", "usr/lib/sysusers.d/commwatch.conf"),
)
MAINTAINER = "The commwatch authors <commwatch@localhost>"
CONFIGURATION = ("/etc/commwatch/commwatch.yaml", "/etc/default/commwatch")
"""Kept where an administrator has changed them."""


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """Run a program in a folder; what it prints.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    done = subprocess.run(
        [str(word) for word in command],
        check=False, capture_output=True, text=True, cwd=folder, env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(target: Path, *wanted: str | Path, report: Path | None = None) -> None:
    """Install wheels into a folder; with ``--requirement FILE`` only files with the hashes of that list."""
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
        "--no-warn-script-location", "--target", target, *wanted, *(("--report", report) if report else ()),
    )  # fmt: skip


def build_wheel(source: Path, output: Path, epoch: int) -> Path:
    """Build the wheel of a source tree with the pinned build backend.

    Args:
        source: the folder of pyproject.toml.
        output: where it goes.
        epoch: no file in it is younger, in seconds since 1970.
    """
    with tempfile.TemporaryDirectory() as backend, tempfile.TemporaryDirectory() as built:
        install(Path(backend), "--require-hashes", "--requirement", ROOT / "packaging/requirements-build.txt")
        run(
            sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", built,
            folder=source, PYTHONPATH=backend, SOURCE_DATE_EPOCH=str(epoch),
        )  # fmt: skip
        (file,) = Path(built).iterdir()
        return Path(shutil.copy(file, output / file.name))


def build_environment(wheel: Path, packages: Path, machine: str, epoch: int) -> str:
    """Install commwatch and what it needs into a folder, for every Python of ``PYTHONS``.

    Args:
        wheel: of commwatch.
        packages: the folder; there is none yet.
        machine: as ``uname -m`` names it; a package may be built on another.
        epoch: the date of the bill of materials, in seconds since 1970.

    Returns:
        The bill of materials.
    """
    archives: dict[str, dict[str, str]] = {}
    platforms = [f"--platform={glibc}_{machine}" for glibc in GLIBCS]
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.json"
        for python in PYTHONS:
            folder = Path(name) / python
            chosen = (*platforms, "--python-version", python, "--implementation", "cp")
            for wanted in (
                ("--no-deps", "--require-hashes", "--requirement", ROOT / "packaging/requirements.txt"),
                ("--no-deps", wheel),
            ):  # fmt: skip
                install(folder, *chosen, *wanted, report=report)
                for distribution, file, digest in sbom.installed_archives(report.read_text(encoding="utf-8")):
                    archives.setdefault(distribution, {})[file] = digest
            overlay(folder, packages)
    return sbom.bill_of_materials(packages, archives, EXTRAS, PYTHONS, machine, epoch)


def overlay(folder: Path, packages: Path) -> None:
    """Lay the packages of one Python over those of the others.

    Raises:
        SystemExit: two Pythons have the same file with another content.
    """
    shutil.rmtree(folder / "bin")
    for record in folder.glob("*.dist-info/*"):
        # They name this machine's paths or one Python.
        if record.name in ("RECORD", "WHEEL", "direct_url.json", "INSTALLER", "REQUESTED"):
            record.unlink()
    for file in folder.rglob("*"):
        other = packages / file.relative_to(folder)
        if other.is_file() and other.read_bytes() != file.read_bytes():
            raise SystemExit(f"{file.relative_to(folder)} differs between Pythons: they cannot share one folder")
    shutil.copytree(folder, packages, dirs_exist_ok=True)


def use_python() -> str:
    """The program that chooses the Python of a node: the distribution's own, else the newest that is there."""
    return (ROOT / "packaging/use-python").read_text(encoding="utf-8").replace("PYTHONS", " ".join(reversed(PYTHONS)))


def build_tree(environment: Path, materials: str, tree: Path, epoch: int) -> None:
    """Lay out what all packages install.

    Args:
        environment: what build_environment has installed.
        materials: its bill of materials.
        tree: stands for the root of the file system.
        epoch: no file is younger, in seconds since 1970.
    """
    home = tree / HOME
    shutil.copytree(environment, home / "lib/site-packages")
    for python in PYTHONS:  # where a Python looks in an environment; a site's torch.pth goes there too
        searched = home / f"lib/python{python}/site-packages"
        searched.mkdir(parents=True)
        (searched / "commwatch.pth").write_text(f"/{HOME}/lib/site-packages\n")
    (home / "sbom.cdx.json").write_text(materials, encoding="utf-8")
    (home / "bin").mkdir()
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (home / "bin/commwatch").write_text(LAUNCHER)
    (home / "bin/use-python").write_text(use_python())
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/commwatch").symlink_to(f"/{HOME}/bin/commwatch")
    for source, target in SHIPPED:
        file = tree / target
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, file)
    documents = tree / "usr/share/doc/commwatch"
    documents.mkdir(parents=True)
    shutil.copy(ROOT / "packaging/copyright", documents / "copyright")
    for file, text in (
        (documents / "CHANGELOG.md.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        (tree / "usr/share/man/man8/commwatch.8.gz", manual.page(epoch)),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
    completion = tree / "usr/share/bash-completion/completions/commwatch"
    completion.parent.mkdir(parents=True)
    completion.write_text(manual.completion(), encoding="utf-8")
    programs = (home / "bin", tree / "usr/lib/systemd/system-generators")
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent in programs else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def package_version(version: str) -> str:
    """Python's version as dpkg and rpm order it: a candidate, 0.2.0rc1, is older than the release: 0.2.0~rc1."""
    return re.sub(r"\.?(a|b|rc|dev)(?=[0-9])", r"~\1", version)


def glibc_of(materials: str) -> str:
    """The glibc that the wheels of a bill of materials were built for, by their names."""
    return f"2.{max(map(int, re.findall(r'manylinux_2_([0-9]+)_', materials)), default=17)}"


def build_deb(environment: Path, materials: str, version: str, machine: str, output: Path, epoch: int) -> Path:
    """Build the package for Debian and Ubuntu."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        build_tree(environment, materials, tree, epoch)
        control, parts = tree / "DEBIAN", ROOT / "packaging/deb"
        control.mkdir()
        date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch))
        entry = (
            f"commwatch ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {date}\n"
        )
        changelog = tree / "usr/share/doc/commwatch/changelog.gz"
        changelog.write_bytes(gzip.compress(entry.encode(), mtime=0))
        overrides = tree / "usr/share/lintian/overrides/commwatch"
        overrides.parent.mkdir(parents=True)
        shutil.copy(parts / "lintian-overrides", overrides)
        size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
        architecture = ARCHITECTURES[machine]
        following = f"3.{int(PYTHONS[-1].removeprefix('3.')) + 1}"
        (control / "control").write_text(
            (parts / "control").read_text().format(
                version=version, architecture=architecture, glibc=glibc_of(materials), size=size,
                python=PYTHONS[0], following=following, maintainer=MAINTAINER,
            )
        )  # fmt: skip
        (control / "conffiles").write_text("".join(f"{path}\n" for path in CONFIGURATION))
        shutil.copy(parts / "triggers", control / "triggers")
        for script in ("postinst", "prerm", "postrm"):
            shutil.copy(parts / script, control / script)
            (control / script).chmod(0o755)
        sums = run(
            "sh",
            "-c",
            f"cd '{tree}' && find . -type f ! -path './DEBIAN/*' -printf '%P\\0' | sort -z | xargs -0 md5sum",
        )
        (control / "md5sums").write_text(sums)
        for path in (
            changelog,
            changelog.parent,
            overrides,
            overrides.parent,
            overrides.parent.parent,
            overrides.parent.parent.parent,
            *control.iterdir(),
            control,
            tree,
        ):
            os.utime(path, (epoch, epoch))
            if path.parent != control:
                path.chmod(0o755 if path.is_dir() else 0o644)
        package = output / f"commwatch_{version}_{architecture}.deb"
        # Level 6, the default, takes nine times as long and saves a seventh.
        run("dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", tree, package, SOURCE_DATE_EPOCH=str(epoch))
    return package


def build_rpm(environment: Path, materials: str, version: str, machine: str, output: Path, epoch: int) -> Path:
    """Build the package for distributions with rpm."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        build_tree(environment, materials, tree, epoch)
        files = [
            f"/{path.relative_to(tree)}" for path in sorted(tree.rglob("*")) if path.is_symlink() or path.is_file()
        ]
        listed = [f"%config(noreplace) {path}" if path in CONFIGURATION else f'"{path}"' for path in files]
        own = [
            f"/{path.relative_to(tree)}" for path in (tree / HOME, *sorted((tree / HOME).rglob("*"))) if path.is_dir()
        ]
        (Path(name) / "files").write_text(
            "\n".join([*(f'%dir "{path}"' for path in [*own, "/etc/commwatch"]), *listed]) + "\n"
        )
        run(
            "rpmbuild", "-bb", "--quiet", "--target", f"{machine}-linux",
            "--define", f"_topdir {name}/rpm", "--define", f"tree {tree}", "--define", f"file_list {name}/files",
            "--define", f"shipped_version {version}",
            "--define", "pythons " + " or ".join(f"/usr/bin/python{python}" for python in PYTHONS),
            "--define", f"needed_glibc {glibc_of(materials)}",
            ROOT / "packaging/rpm/commwatch.spec",
            SOURCE_DATE_EPOCH=str(epoch),
        )  # fmt: skip
        built = next(Path(name).glob("rpm/RPMS/*/*.rpm"))
        return Path(shutil.copy(built, output / built.name))


KINDS = {"deb": (build_deb, "dpkg-deb", "dpkg"), "rpm": (build_rpm, "rpmbuild", "rpm, rpm-build in RHEL")}
"""Each kind of package: what builds it, the program that this needs, and the distribution's package of the program."""


def buildable(wanted: str | None = None) -> list[str]:
    """The kinds of package that this machine can build; one line on standard error for each of the others.

    Args:
        wanted: the only kind that is asked for; None: all.
    """
    kinds = [kind for kind in KINDS if wanted in (None, kind)]
    for kind in kinds:
        _, program, package = KINDS[kind]
        if shutil.which(program) is None:
            print(f"no {kind} is built: there is no {program} here (package {package})", file=sys.stderr, flush=True)
    return [kind for kind in kinds if shutil.which(KINDS[kind][1])]


def main() -> int:
    """Build what is asked for and can be built; prints the files."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0] if __doc__ else "",
        epilog="example: python packaging/build.py --only deb --output dist",
    )
    parser.add_argument("--only", choices=list(KINDS), help="default: all that can be built here")
    parser.add_argument("--machine", choices=list(ARCHITECTURES), help="default: all; none needs a machine of its kind")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="of commwatch; default: the one of this tree")
    parser.add_argument("--version-suffix", default="", help="for a rebuild of the same version, such as +site1")
    options = parser.parse_args()
    kinds = buildable(options.only)
    if not kinds:
        return 1
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = (options.wheel or build_wheel(ROOT, folder, epoch)).resolve()
        version = package_version(wheel.name.split("-")[1]) + options.version_suffix
        for machine in [options.machine] if options.machine else ARCHITECTURES:
            environment = folder / machine
            text = build_environment(wheel, environment, machine, epoch)
            materials = output / f"commwatch-{version}.{machine}.cdx.json"
            materials.write_text(text, encoding="utf-8")
            print(materials)
            for kind in kinds:
                build, *_ = KINDS[kind]
                print(build(environment, text, version, machine, output, epoch), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
