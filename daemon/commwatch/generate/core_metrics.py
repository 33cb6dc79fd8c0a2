"""The list of metrics that the shipped rules and dashboards ask for."""

from __future__ import annotations

import re

from commwatch.config.thresholds import load_thresholds
from commwatch.generate.alert_rules import Site, render_all
from commwatch.generate.dashboards.render import files
from commwatch_exporters.catalogue import family_of

_NAME = re.compile(r"(?<![:\w])commwatch_\w+")


def page() -> str:
    """One name a line, in the order of the alphabet."""
    thresholds, site = load_thresholds(None), Site()
    texts = [*render_all(thresholds, site).values(), *files(thresholds, site).values()]
    families = set()
    for name in {name for text in texts for name in _NAME.findall(text)}:
        try:
            families.add(family_of(name).name)
        except KeyError:
            continue  # a group of rules, or a word of the site
    # What alerts read as a recent rise stays there as the counter that it is one of.
    families |= {f"{name.removesuffix('_recent')}_total" for name in families if name.endswith("_recent")}
    return "".join(f"{name}\n" for name in sorted(families))
