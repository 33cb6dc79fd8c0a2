"""commwatch assets: the files that are shipped beside the program."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from commwatch.commands.command import command, option
from commwatch.config.assets import asset
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.views.terminal import show

FOLDERS = (
    "alerts",
    "docs",
    "grafana",
    "packaging/cluster",
    "packaging/node-problem-detector",
    "packaging/slurm",
    "systemd",
)


@command(
    "assets",
    "list or copy what is shipped: rules, runbooks, dashboards, unit, documentation",
    "Prints where the shipped files are, or copies them into a new folder: alert rules and templates, "
    "runbooks, Alertmanager and Prometheus examples, dashboards with provisioning, the systemd unit with its "
    "configuration, scripts for Slurm, node-problem-detector and runs between nodes, and the documentation.",
    "commwatch assets --to /etc/commwatch/shipped",
    option("--to", type=Path, metavar="DIR", help="copy all of it into this new folder"),
    reads_settings=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    found = {name: asset(name) for name in FOLDERS}
    if args.to is not None:
        if args.to.exists():
            raise UsageError(f"{args.to} is there already; name a folder that is not, or remove it")
        for name, path in found.items():
            shutil.copytree(path, args.to / name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
        found = {name: args.to / name for name in FOLDERS}
    paths = {name: str(path) for name, path in found.items()}
    show(paths, paths.values(), as_json=args.json)
    return ExitCode.OK
