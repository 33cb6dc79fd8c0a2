"""The textfile: what node_exporter's collector accepts, and never half of it."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from commwatch_exporters.metrics_page import MetricsPage
from support.pages import page_of, snapshot_of, whole_catalogue


def test_every_metric_is_read_as_from_the_page() -> None:
    """The same families with the same help, type and values, but for those of the process."""
    snapshot = snapshot_of(whole_catalogue())

    file = list(text_string_to_metric_families(MetricsPage(lambda: snapshot).textfile().decode()))
    page = list(text_string_to_metric_families(page_of(snapshot).decode()))

    assert file == [family for family in page if not family.name.startswith("process_")]
    assert len(file) > 250


def test_it_holds_nothing_that_node_exporter_refuses() -> None:
    """No timestamp, no exemplar, no end mark of OpenMetrics, no type that is not of text 0.0.4; each family once."""
    text = MetricsPage(lambda: snapshot_of(whole_catalogue())).textfile().decode()

    lines = text.splitlines()
    assert text.endswith("\n")
    assert "# EOF" not in text
    assert not [line for line in lines if line[0] != "#" and not re.fullmatch(r"[a-z_0-9]+(\{.*\})? \S+", line)]
    types = [line.split() for line in lines if line.startswith("# TYPE")]
    assert {kind for _, _, _, kind in types} <= {"counter", "gauge", "histogram"}
    assert len(types) == len({name for _, _, name, _ in types}) == len([one for one in lines if one[:6] == "# HELP"])
