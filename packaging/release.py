"""Builds a release from a commit: ``python packaging/release.py --output dist``.

It makes the sdist from the files of the commit, and everything else from the sdist: wheel, debs and rpms, the bill of
materials of the environment in them, and SHA256SUMS. What this machine has no program for is left out. Changes that
are not committed are not in it. Two builds of one commit give the same bytes on the same distribution and Python.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from build import ROOT, build_wheel, buildable, run


def build_sdist(checkout: Path, wheel: Path, output: Path, epoch: int) -> Path:
    """Pack all files of a checkout, links as links: hatchling's own sdist follows them and loses the folders behind.

    Args:
        checkout: files of a commit; gets a PKG-INFO.
        wheel: of the checkout, for the metadata.
        output: where the sdist goes.
        epoch: the date of all files, in seconds since 1970.
    """
    name = "-".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as opened:
        (checkout / "PKG-INFO").write_bytes(opened.read(f"{name}.dist-info/METADATA"))

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = epoch
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    sdist = output / f"{name}.tar.gz"
    with (
        sdist.open("wb") as file,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(checkout.rglob("*")):
            if path.is_symlink() or path.is_file():
                archive.add(path, f"{name}/{path.relative_to(checkout)}", recursive=False, filter=plain)
    return sdist


def build_release(commit: str, output: Path) -> list[Path]:
    """Build everything of a commit.

    Args:
        commit: as git names it.
        output: a folder that exists.

    Returns:
        The files, SHA256SUMS last.

    Raises:
        SystemExit: a step failed, or the commit has a tag of another version.
    """
    epoch = int(run("git", "log", "-1", "--format=%ct", commit))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkout = folder / "checkout"
        run("git", "archive", "--output", folder / "commit.tar", commit)
        _unpack(folder / "commit.tar", checkout)
        built = build_wheel(checkout, folder, epoch)
        version = built.name.split("-")[1]
        tags = [tag for tag in run("git", "tag", "--points-at", commit).split() if re.match(r"v?\d", tag)]
        if tags and version not in [tag.removeprefix("v") for tag in tags]:
            raise SystemExit(
                f"{commit} has the tag {', '.join(tags)}, and daemon/commwatch/__init__.py the version {version}: "
                "make them agree"
            )
        sdist = build_sdist(checkout, built, output, epoch)
        _unpack(sdist, folder)
        source = folder / sdist.name.removesuffix(".tar.gz")
        wheel = build_wheel(source, output, epoch)
        printed = run(
            sys.executable, source / "packaging/build.py", "--wheel", wheel, "--output", output,
            folder=source, SOURCE_DATE_EPOCH=str(epoch), PYTHONPATH=f"{source}/daemon:{source}/exporters",
        )  # fmt: skip
    files = sorted([sdist, wheel, *map(Path, printed.splitlines())])
    sums = output / "SHA256SUMS"
    sums.write_text(
        "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files), encoding="utf-8"
    )
    return [*files, sums]


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    run("tar", "--extract", "--no-same-owner", "--file", archive, "--directory", folder)


def main() -> int:
    """Build the release; prints the files."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0] if __doc__ else "",
        epilog="example: python packaging/release.py --commit v0.2.0 --output dist",
    )
    parser.add_argument("--commit", default="HEAD", help="default: HEAD")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    options = parser.parse_args()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    if not buildable():
        return 1
    if changed := run("git", "status", "--short").splitlines():
        print(f"left out of the release: {len(changed)} files with changes that are not committed", file=sys.stderr)
    for file in build_release(options.commit, output):
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
