"""Changes of a site to the alert rules: its own file is read and applied to the rendered rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import yaml

from commwatch.config.settings import Section
from commwatch.config.yaml_file import Steps, YamlDocument, decode, load_rendered, read_yaml
from commwatch.errors import did_you_mean

_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)"(?:[^"\\]|\\.)*"'
_MATCHERS = re.compile(rf"{_MATCHER}(?:, *{_MATCHER})*")
_JOB = re.compile(r'[^"\\@{}]+')
_EXPECTED = {_JOB: "the name of one job", _MATCHERS: 'matchers such as cluster="a", rack!~"test.*"'}
_NODE_SEEN = "10m"
"""A target that discovery lost for a moment stays with its alert."""

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class AlertChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    severity: Literal["critical", "warning", "info"] | None = None
    """None: as shipped."""
    nodes: Text = ""
    """Matchers on the labels of the targets to which the alert is confined; empty: all nodes."""


class SiteFile(Section, frozen=True):
    """A site's file; what it does not name is empty."""

    job: Text = ""
    matchers: Text = ""
    runbooks: Text = ""
    dashboards: Text = ""
    thresholds: Text = ""
    """Path of a file."""
    set: Literal["core", "extended"] = "extended"
    """Which alerts are rendered."""
    alerts: Mapping[str, AlertChange] = {}


def read_site_file(path: Path, shipped: Mapping[str, bool]) -> SiteFile:
    """Read a site's file.

    Args:
        path: YAML; ``alerts/site.example.yml`` shows each key.
        shipped: the alerts that there are, each with whether it is about one node.

    Raises:
        ConfigError: with the line: unknown key or alert, wrong severity or matchers.
    """
    document = read_yaml(path)
    site = decode(document, SiteFile)
    _check(document, ("job",), site.job, _JOB)
    _check(document, ("matchers",), site.matchers, _MATCHERS)
    for name, change in site.alerts.items():
        if name not in shipped:
            hint = did_you_mean(name, shipped, "docs/reference/alerts.md has them all")
            raise document.error(("alerts", name), f"no such alert; {hint}")
        nodes: Steps = ("alerts", name, "nodes")
        _check(document, nodes, change.nodes, _MATCHERS)
        if change.nodes and not shipped[name]:
            raise document.error(nodes, "this alert is not about one node; `matchers` confine all")
    return msgspec.structs.replace(site, thresholds=site.thresholds and str(path.parent / site.thresholds))


def _check(document: YamlDocument, steps: Steps, text: str, form: re.Pattern[str]) -> None:
    if text and form.fullmatch(text) is None:
        raise document.error(steps, f"cannot be {text!r}; expected {_EXPECTED[form]}")


def alerts_about_nodes(rules: str) -> dict[str, bool]:
    """The alerts of a rule file or template, each with whether it is about one node: its description names one."""
    blocks = re.split(r"^ *- alert: ", rules, flags=re.MULTILINE)[1:]
    return {block.split("\n", 1)[0].strip(): "$labels.instance" in block for block in blocks}


def changed_rules(rules: str, changes: Mapping[str, AlertChange], job: str, keep_firing: str) -> str:
    """A rendered rule file with a site's changes; as it is where none of its alerts is named.

    Args:
        changes: by alert.
        job: under which Prometheus scrapes the daemons.
        keep_firing: for how long an alert that becomes critical goes on after its fault, as Prometheus writes it.
    """
    if not changes.keys() & alerts_about_nodes(rules).keys():
        return rules
    document = load_rendered(rules)
    for group in document["groups"]:
        for rule in group["rules"]:
            if (change := changes.get(rule.get("alert", ""))) is not None:
                _change(rule, change, job, keep_firing)
    header = rules.split("\n", 1)[0]
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000)
    return f"{header}\n# With the changes of this site.\n{text}"


def _change(rule: dict[str, Any], change: AlertChange, job: str, keep_firing: str) -> None:
    if change.severity and change.severity != rule["labels"]["severity"]:
        rule["labels"]["severity"] = change.severity
        if change.severity == "critical":
            rule["keep_firing_for"] = keep_firing
    if change.nodes:
        expression = rule["expr"].strip()
        rule["expr"] = (
            f"(\n{expression}\n)\nand on (cluster, job, instance)\n"
            f'last_over_time(up{{job="{job}", {change.nodes}}}[{_NODE_SEEN}])\n'
        )


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)
