"""commwatch dashboards: Grafana's dashboards, with the site's limits and addresses."""

from __future__ import annotations

import argparse

from commwatch.commands.site_options import read_site, site_options, write_files
from commwatch.config.settings import Config
from commwatch.errors import UsageError


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command, which reads no setting, to the command line."""
    parser = subparsers.add_parser(
        "dashboards",
        help="write Grafana's dashboards, with the limits of your site",
        description="Writes the dashboards as JSON files into a folder that Grafana provisions.",
        epilog="example: commwatch dashboards --output /var/lib/grafana/dashboards/commwatch",
    )
    site_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Write the dashboards."""
    from commwatch.generate.dashboards import files

    if args.output is None:
        raise UsageError("dashboards: name the folder: --output DIR")
    site, _, thresholds = read_site(args)
    return write_files(args.output, files(thresholds, site), "commwatch-*.json", check=args.check)
