"""docs/reference/metrics.md and the catalogue."""

from __future__ import annotations

from commwatch.generate.metric_tables import page
from commwatch_exporters.catalogue import CATALOGUE, SECTIONS, Metric


def test_every_metric_stands_once() -> None:
    """Each metric has one row, with its labels."""
    text = page(SECTIONS)

    assert [name for name in CATALOGUE if text.count(f"| `{name}` |") != 1] == []
    assert all(f"`{label}`" in text for metric in CATALOGUE.values() for label in metric.labels)


def test_texts_do_not_break_the_table() -> None:
    """A bar, a star or an angle bracket of a text is shown as itself."""
    metric = Metric("commwatch_gpu_x", "gauge", (), "One | two.", "/sys/*/<name>")

    assert r"| One \| two. | /sys/\*/&lt;name> |" in page({"GPU": [metric]})


def test_a_type_that_the_name_does_not_say_is_told() -> None:
    """And so are labels, but for the address beside each GPU."""
    labels = ("gpu", "pci_bus_id", "link")
    gauge, histogram = (Metric("commwatch_gpu_x", kind, labels, "X.", "x") for kind in ("gauge", "histogram"))

    assert "| `gpu`, `link` | X. | x |" in page({"GPU": [gauge]})
    assert "| `gpu`, `link` | X. A histogram. | x |" in page({"GPU": [histogram]})
    assert "| `pci_bus_id` | X. |" in page({"GPU": [Metric("commwatch_x", "gauge", ("pci_bus_id",), "X.", "x")]})
