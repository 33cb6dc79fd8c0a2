"""commwatch dashboards: Grafana's dashboards, with the site's limits and addresses."""

from __future__ import annotations

import argparse

from commwatch.commands.command import command, option
from commwatch.commands.site_options import SITE_OPTIONS, read_site, write_files
from commwatch.config.settings import Config
from commwatch.errors import UsageError


@command(
    "dashboards",
    "write Grafana's dashboards, with the limits of your site",
    "Writes the dashboards as JSON files into a folder that Grafana provisions.",
    "commwatch dashboards --output /var/lib/grafana/dashboards/commwatch",
    *SITE_OPTIONS,
    option("--share", action="store_true", help="in Grafana's form for sharing: an import asks for the data source"),
    reads_settings=False,
    prints_json=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    from commwatch.generate.dashboards import files

    if args.output is None:
        raise UsageError("dashboards: name the folder: --output DIR")
    site, _, thresholds = read_site(args)
    return write_files(args.output, files(thresholds, site, share=args.share), "commwatch-*.json", check=args.check)
