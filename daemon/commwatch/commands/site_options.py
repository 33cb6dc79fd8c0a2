"""Shared options of the commands that render files for a site: its file, its thresholds, and the output folder."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.command import option
from commwatch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from commwatch.config.thresholds import Thresholds
    from commwatch.generate.alert_rules import Site
    from commwatch.generate.site import SiteFile


SITE_OPTIONS = (
    option("--output", type=Path, metavar="DIR", help="the folder to write to"),
    option("--check", action="store_true", help="write nothing; exit code 1 if a file is not current"),
    option("--site", type=Path, metavar="FILE", help="what your site changes (alerts/site.example.yml)"),
    option("--thresholds", type=Path, metavar="FILE", help="thresholds in place of the shipped ones"),
    option("--runbook-url", dest="runbooks", metavar="URL", help="where the runbooks can be read"),
)


def read_site(args: argparse.Namespace) -> tuple[Site, SiteFile, Thresholds]:
    """The words of the site, its file, and its thresholds: of a flag, else of the file, else as shipped.

    Raises:
        ConfigError: the file or the thresholds are wrong.
    """
    from commwatch.config.thresholds import load_thresholds
    from commwatch.generate.alert_rules import Site, shipped_alerts
    from commwatch.generate.site import SiteFile, read_site_file

    own = SiteFile() if args.site is None else read_site_file(args.site, shipped_alerts())
    words = {one.name: getattr(args, one.name, None) or getattr(own, one.name) for one in dataclasses.fields(Site)}
    for key in ("runbooks", "dashboards"):
        words[key] = words[key].rstrip("/")
    thresholds = load_thresholds(args.thresholds or own.thresholds)
    return Site(**{key: value for key, value in words.items() if value}), own, thresholds


def write_files(folder: Path, files: Mapping[str, str], pattern: str, begins: str = "", *, check: bool) -> int:
    """Make a folder hold exactly these files of ours, or with ``check`` say which do not; returns the exit code.

    Args:
        folder: what else is in it stays.
        files: texts by name.
        pattern: of the names of our files; one that is not among ``files`` is not current.
        begins: with what their texts begin.
        check: write nothing.

    Raises:
        UsageError: a file of somebody else has the name of one of ours.
    """
    found = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in folder.glob(pattern)}
    present = {name: text for name, text in found.items() if text.startswith(begins)}
    wrong = sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
    if check:
        for name in wrong:
            print(f"{folder / name} is not current", file=sys.stderr)
        return ExitCode.FOUND if wrong else ExitCode.OK
    # An empty one is ours too, from when the disk was full.
    if foreign := sorted(name for name in files.keys() & found.keys() - present.keys() if found[name]):
        raise UsageError(f"{folder / foreign[0]} is not from this command: name a folder for its files alone")
    folder.mkdir(parents=True, exist_ok=True)
    for name in wrong:
        if name in files:
            (folder / name).write_text(files[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return ExitCode.OK
