"""docs/reference/metrics.md and the catalogue."""

from __future__ import annotations

import re

from commwatch.generate.metric_tables import page
from commwatch_exporters.catalogue import CATALOGUE, SECTIONS, Metric


def test_every_metric_stands_once() -> None:
    """Each metric has one entry, with its labels."""
    text = page(SECTIONS)

    rows = re.findall(r"^- `(commwatch_\w+)(?:{([\w,]+)})?`: ", text, re.MULTILINE)

    assert sorted(name for name, _ in rows) == sorted(CATALOGUE)
    for name, shown in rows:
        labels = CATALOGUE[name].labels
        assert shown == ",".join(one for one in labels if one != "pci_bus_id" or "gpu" not in labels)


def test_texts_are_shown_as_they_are() -> None:
    """A star or an angle bracket of a text is shown as itself."""
    metric = Metric("commwatch_gpu_x", "gauge", (), "One | two.", "/sys/*/<name>")

    assert r"`: One | two.<br>/sys/\*/&lt;name>" in page({"GPU": [metric]})


def test_a_type_that_the_name_does_not_say_is_told() -> None:
    """And so are labels, but for the address beside each GPU."""
    labels = ("gpu", "pci_bus_id", "link")
    gauge, histogram = (Metric("commwatch_gpu_x", kind, labels, "X.", "x") for kind in ("gauge", "histogram"))

    assert "{gpu,link}`: X.<br>x" in page({"GPU": [gauge]})
    assert "{gpu,link}`: X. A histogram.<br>x" in page({"GPU": [histogram]})
    assert "{pci_bus_id}`: X." in page({"GPU": [Metric("commwatch_x", "gauge", ("pci_bus_id",), "X.", "x")]})
