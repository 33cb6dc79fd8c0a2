"""The files of NCCL Inspector and the reports of RAS."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from benchmarks.fuzz.target import Check, Target

from commwatch.jobs.inspector.report import InspectorReport
from commwatch.jobs.inspector.source import SEARCH_SECONDS, InspectorSource
from commwatch.jobs.ras import judge_report
from commwatch_exporters.snapshot import Layout
from core.test_job_ras import ALIKE, BROKEN, LATE, ZEROES, report
from sources.test_nccl_inspector import PAGE, Node, operation

_NAMES: Final = ("gpu7-pid7.log", "nccl_inspector_metrics_8c2fa1b0-0000-4000-8000-0123456789ab.prom")
_INSPECTOR: Final = (
    b'"coll_perf":', b'"dump_stats":', b'"proxy_trace":', b"v4.3", b"v4.0", b"v5.1", b"NaN", b"-1", b"1e999", b"\n",
    b"\r", b"{", b"}", b'message_size="4-5GB"', b"nccl_bus_bandwidth_gbs{", b"9223372036854775808",
)  # fmt: skip


@contextmanager
def _inspector(folder: Path) -> Iterator[Check]:
    """Files that grow while they are read, in pieces; the same bytes as JSON lines and as a .prom file."""
    places = [folder / name for name in _NAMES]

    def check(data: bytes) -> None:
        for place in places:
            place.write_bytes(b"")
        now = os.stat(places[0]).st_mtime
        source = InspectorSource([str(folder)], "gpu7", lambda: now, lambda: now)
        size = max(1, len(data) // 3)
        for start in (0, *range(0, len(data), size)):
            for place in places:
                with place.open("ab") as file:
                    file.write(data[start : start + size])
            now += SEARCH_SECONDS
            batch = source.collect("nccl_inspector")
            msgspec.json.decode(batch.audit or b"", type=InspectorReport)
            (readings,) = batch.readings
            assert len(Layout(readings.series).prefixes) == len(readings.values)
            assert all(value is not None and 0 <= value < 1e30 for value in readings.values)
        source.close()

    yield check


def _dumps() -> Sequence[bytes]:
    with TemporaryDirectory() as folder:
        node = Node(Path(folder))
    versions = ("v4.0", "v4.1", "v4.2", "v4.3", "v4.4", "v5.0")
    trace = {"kernel_events": [{"channel_id": 0, "kernel_start_ts": 1752867229235181}]}
    step = {"record_type": "proxy_step", "direction": "send", "event_trace_ts": {"send_wait_ts": 5}}
    records = (operation(8), operation(16, event_trace_ts=trace), {"proxy_trace": step})
    dumps = [node.dump(*records, version=version).encode() for version in versions]
    return [*dumps, b"".join(dumps), PAGE.format(nodes=2, value="300", dropped=5).encode()]


@contextmanager
def _ras(folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        word = judge_report(data, (101,), died=1)
        msgspec.json.encode(word)
        assert word.words.isprintable()
        assert all(count >= 0 for count in word.states().values())

    yield check


JOB_FILES: Final = (
    Target("inspector", _inspector, _dumps, _INSPECTOR),
    Target("ras", _ras, lambda: [report(ALIKE, LATE, ZEROES).encode(), BROKEN.encode()], form="json"),
)
