"""commwatch rules: the alert rules for Prometheus, with the site's changes."""

from __future__ import annotations

import argparse
import sys

from commwatch.commands.command import command, option
from commwatch.commands.site_options import SITE_OPTIONS, read_site, write_files
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError


@command(
    "rules",
    "write the alert rules for Prometheus, with what your site changes",
    "Writes the alert rules as files into a folder, or as one document to standard output: for "
    "Prometheus, or as a PrometheusRule for its operator.",
    "commwatch rules --site /etc/commwatch/rules.yml --output /etc/prometheus/commwatch",
    *SITE_OPTIONS,
    option("--dashboards", metavar="URL", help="Grafana's address"),
    option("--job", help="job label of the daemons (default: commwatch)"),
    option(
        "--set",
        choices=("core", "extended"),
        help="core: pages and the tickets that need a hand (default: extended, all)",
    ),
    option(
        "--operator",
        metavar="LABEL=VALUE",
        nargs="*",
        help="print one PrometheusRule, with the labels by which your Prometheus selects it",
    ),
    reads_settings=False,
    prints_json=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    from commwatch.generate.alert_rules import HEADER, one_document, prometheus_rule, render_all

    if args.check and args.output is None:
        raise UsageError("rules: --check needs --output")
    if args.operator is not None and args.output is not None:
        raise UsageError("rules: --operator prints one document: redirect it, without --output")
    site, own, thresholds = read_site(args)
    try:
        files = render_all(thresholds, site, own.alerts, core=(args.set or own.set) == "core")
    except ValueError as error:
        raise UsageError(f"thresholds: {error}") from error
    if args.output is not None:
        code = write_files(args.output, files, "*.yaml", HEADER, check=args.check)
    else:
        sys.stdout.write(one_document(files) if args.operator is None else prometheus_rule(files, args.operator))
        code = ExitCode.OK
    if "//localhost" in site.runbooks:
        print(
            "commwatch rules: runbooks are linked on the node that an alert is about, or at localhost if it is about "
            "none; give --runbook-url, or set runbooks in the site's file, for pages of your own",
            file=sys.stderr,
        )
    if "//localhost" in site.dashboards:
        print(
            "commwatch rules: dashboards are linked at localhost; give --dashboards, or set it in the site's file",
            file=sys.stderr,
        )
    return code
