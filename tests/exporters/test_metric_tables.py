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


def test_an_origin_stands_once_for_the_entries_below_it() -> None:
    """An entry with another origin has its own, and so has the one after it."""
    x, y, z = (
        Metric(f"commwatch_{name}", "gauge", (), "Text.", origin) for name, origin in zip("xyz", "aab", strict=True)
    )

    assert "`commwatch_x`: Text.<br>a\n- `commwatch_y`: Text.\n- `commwatch_z`: Text.<br>b\n" in page(
        {"GPU": [x, y, z]}
    )
    assert "`commwatch_z`: Text.<br>b\n- `commwatch_y`: Text.<br>a\n" in page({"GPU": [z, y]})


def test_a_recent_rise_names_its_counter_alone() -> None:
    """The introduction says what a recent rise is; the next entry has its own origin."""
    rises = (CATALOGUE["commwatch_gpu_xid_events_recent"], Metric("commwatch_y", "gauge", (), "Text.", "a"))

    assert "{gpu,xid}`: Recent rise of `commwatch_gpu_xid_events_total`.\n- `commwatch_y`: Text.<br>a\n" in page(
        {"GPU": rises}
    )


def test_an_origin_leaves_out_what_is_said_once() -> None:
    """NVML, ethtool and the folder of a port are in the introduction and in the note of a section."""
    origins = ("NVML field 94", "NVML return codes", "sysfs /sys/class/net/*/mtu", "ethtool: mlx5 x")
    port = "sysfs /sys/class/infiniband/*/ports/*/counters/x"
    text = page({"RDMA": [Metric("commwatch_x", "gauge", (), "Text.", origin) for origin in (*origins, port)]})

    lines = ("field 94", "NVML return codes", r"/sys/class/net/\*/mtu", "mlx5 x", "counters/x")
    assert re.findall(r"Text\.<br>(.*)", text) == list(lines)
    assert r"below /sys/class/infiniband/\*/ports/\*." in text
