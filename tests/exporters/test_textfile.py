"""The textfile: what node_exporter's collector accepts, and never half of it."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from commwatch.state.replace import replace_file
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


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Whenever it is read, there is one of the pages; and nothing else that ends in .prom."""
    file = tmp_path / "commwatch.prom"
    pages = [bytes([letter]) * 200_000 for letter in b"abcdefghijklmnopqrst"]
    replace_file(file, pages[0], 0o644)
    seen: set[bytes] = set()
    names: set[str] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(file.read_bytes())
            names.update(one for one in os.listdir(tmp_path) if one.endswith(".prom"))

    reader = threading.Thread(target=read)
    reader.start()
    for page in pages * 5:
        replace_file(file, page, 0o644)
    over.set()
    reader.join()

    assert seen <= set(pages)
    assert names == {"commwatch.prom"}
    assert os.listdir(tmp_path) == ["commwatch.prom"]


def test_everyone_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """The unit's umask is 0027, and node_exporter runs as another user."""
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "commwatch.prom", b"", 0o644)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "commwatch.prom").stat().st_mode) == 0o644


def test_a_link_in_the_way_of_the_temporary_file_leads_nowhere(tmp_path: Path) -> None:
    """Whoever may write into the directory must not choose what we write to."""
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / f".commwatch.prom.{os.getpid()}").symlink_to(other)

    replace_file(tmp_path / "commwatch.prom", b"page", 0o644)

    assert other.read_text() == "precious"
    assert (tmp_path / "commwatch.prom").read_bytes() == b"page"


def test_what_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    """Here a directory has the file's name."""
    (tmp_path / "commwatch.prom").mkdir()

    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "commwatch.prom", b"page", 0o644)

    assert os.listdir(tmp_path) == ["commwatch.prom"]
