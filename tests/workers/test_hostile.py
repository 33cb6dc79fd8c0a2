"""A worker process that has become hostile: what the daemon takes of it, and that it is given up for all else."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Paths
from commwatch.node.run import Collected
from commwatch.node.starvation import Sample, Starvation
from commwatch.state.records import LONGEST_LABEL
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.sources import READERS, SOURCES
from commwatch.workers.wire import MOST_EARLY, Bounds, Order, frame, take_frames
from commwatch.workers.worker import Hung
from commwatch_exporters.catalogue import CATALOGUE, Metric
from support.audited import audited
from support.core import in_loop
from support.fed_daemon import FedDaemon
from support.hostile_worker import GivenUpError, encoded, hostile
from support.passes import in_one_pass

FILES = "commwatch_nccl_log_files"
LABELLED = "commwatch_nccl_setting_processes"
"""A metric with three labels."""
JOBS = next(row.bounds for row in READERS if row.name == "jobs")
HOST = next(row.bounds for row in READERS if row.name == "host")
DRIVER = next(row.bounds for row in READERS if row.name == "nvml")
SETTINGS = next(row.bounds for row in READERS if row.name == "settings")


def reading(*series: tuple[str, tuple[str, ...]], values: Any = None, device: str = "", at: float = 0.0) -> Any:
    return (device, at, series, [1] * len(series) if values is None else values)


def absence(device: str, reason: Any, detail: str = "") -> dict[str, Any]:
    return {"device": device, "reason": reason, "detail": detail}


def labels(number: int) -> tuple[str, ...]:
    return (f"variable{number}", "code", "severity")


REFUSED: dict[str, dict[str, Any]] = {
    "a metric of other hardware": {"readings": [reading(("commwatch_nvlink_link_state", ("0", "x", "0")))]},
    "a metric that does not exist": {"readings": [reading(("commwatch_nccl_setting_made_up", ()))]},
    "too few labels": {"readings": [reading((LABELLED, ("one",)))]},
    "one series twice": {"readings": [reading((LABELLED, labels(1)), (LABELLED, labels(1)))]},
    "a thousand label values": {"readings": [reading(*((LABELLED, labels(number)) for number in range(1000)))]},
    "a label value in each of a thousand devices": {
        "readings": [reading((LABELLED, labels(number)), device=str(number)) for number in range(1000)]
    },
    "more values than series": {"readings": [reading((LABELLED, labels(1)), values=[1, 2])]},
    "values of series that it never told": {"readings": [("", 0.0, None, [1])]},
    "a number that is none": {"readings": [reading((LABELLED, labels(1)), values=[math.nan])]},
    "a number without end": {"readings": [reading((LABELLED, labels(1)), values=[math.inf])]},
    "a number beyond all": {"readings": [reading((LABELLED, labels(1)), values=[1e300])]},
    "text for a number": {"readings": [reading((LABELLED, labels(1)), values=["1"])]},
    "a device with a long name": {"readings": [reading((LABELLED, labels(1)), device="x" * 1000)]},
    "a reason of its own": {"absences": [absence("", "no_such_reason")]},
    "a negative count": {"log_errors": [msgspec.to_builtins({"category": "ib_retry", "certain": True, "count": -5,
                                                             "file": "", "text": ""})]},
    "a process id that is none": {"occupants": {"0000:01:00.0": (-1,)}},
    "an event before 1970": {"events": [{"kind": "xid", "device": "", "code": "79", "origin": "nvml", "time": -1.0}]},
    "a large record to go on from": {"resume": bytes(2**20 + 1)},
    "a large audit": {"audit": bytes(2**20 + 1)},
    "more devices than a node has": {"readings": [reading(device=str(number)) for number in range(8193)]},
    "a reason as an object": {"absences": [absence("", {"__reduce__": "os.system"}, "id")]},
    "a run of what was not ordered": {"collector": "another"},
    "a duration that is none": {"duration": math.nan},
}  # fmt: skip


@in_one_pass("said", REFUSED)
def test_a_worker_that_says_what_none_would_is_given_up(said: str) -> None:
    """As if it had ended, at once: nothing of it is kept, and one line of the log says why."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            with pytest.raises(GivenUpError):
                await one.gave(**REFUSED[said])
            assert one.taken == []

    with capture_logs() as logged:
        in_loop(body)
    (event,) = [one for one in logged if one["event"].startswith("a worker sent")]
    assert len(event["error"]) <= 1024


FIELDS = {
    "nvml": {"c2c", "counters", "fabric", "gpu", "nvlink", "pcie", "software"},
    "nvml_pcie": {"counters", "pcie"},
    "host": {"counters", "ethernet", "gpudirect", "kernel_log", "pcie", "service"},
    "rdma": {"counters", "ethernet", "rdma"},
    "jobs": {"flight", "nccl_inspector", "nccl_log"},
    "settings": {"nccl_setting"},
}


def family(metric: str) -> str:
    """What a metric is about: the first word of its name, or two."""
    words = metric.split("_")[1:]
    return "_".join(words[: 2 if words[0] in ("nccl", "kernel") else 1])


@in_one_pass("reader", [row.name for row in READERS])
def test_each_reader_is_believed_in_its_own_field_alone(reader: str) -> None:
    """Of what the daemon exports it may fill its own families; a series of any other one ends it."""
    bounds = next(row.bounds for row in READERS if row.name == reader)
    one_of_each = {family(name): (name, metric) for name, metric in CATALOGUE.items()}

    async def taken(name: str, metric: Metric) -> bool:
        async with hostile(bounds) as one:
            try:
                await one.gave(readings=[reading((name, ("1",) * len(metric.labels)))])
            except GivenUpError:
                return False
            return True

    async def body() -> None:
        assert {name for name, given in one_of_each.items() if await taken(*given)} == FIELDS[reader]

    in_loop(body)


def test_what_a_worker_names_is_neither_opened_nor_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths and programs in every text that it may say: the daemon takes them, analyses and saves, and touches none."""
    bait = tmp_path / "bait"
    bait.mkdir()
    name = f"{bait}/../bait/$(id)"
    event = {
        "kind": "xid",
        "device": name,
        "code": "79",
        "origin": "kernel_log",
        "time": 1.0,
        "text": name,
        "boot": name,
    }
    error = {"category": name, "certain": True, "count": 1, "file": name, "text": name, "hca": name}
    daemon = FedDaemon(tmp_path / "state", monkeypatch)
    names = ("nvml_identity", "kernel_log", "nccl_logs", "nccl_settings", "network")

    async def given() -> list[Collected]:
        async with hostile(Bounds()) as one:
            return [
                await one.gave(
                    readings=[reading((LABELLED, (name, name, name)), device=name)],
                    events=[event],
                    absences=[absence(name, "unreadable", name)],
                    aliases={name: name},
                    occupants={name: (1,)},
                    log_errors=[error],
                    resume=b'{"files": {"' + name.encode() + b'": [1, 2]}}',
                    audit=b'{"read": 1, "words": "' + name.encode() + b'"}',
                )
                for _ in names
            ]

    taken = asyncio.run(given())
    with audited() as audit:
        for collector, collected in zip(names, taken, strict=True):
            daemon.feed(collector, collected)
        daemon.save()
        events = list(audit)
    assert not any("could not be kept" in entry["event"] for entry in daemon.log)
    assert [event for event in events if str(bait) in str(event[1])] == []
    started = ("subprocess", "pickle", "os.exec", "os.posix_spawn", "os.system", "os.fork")
    assert [event for event in events if event[0].startswith(started)] == []


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff" + bytes(100),
        frame(b"\xc1"),
        frame(b"\xdd\xff\xff\xff\xff"),
        frame(b"\x91" * 100_000),
        frame(msgspec.msgpack.encode({"number": 1})),
        frame(b"\x9d\x01" + b"\xdd\x00\xff\xff\xff" + b"\x90" * 1000),
    ],
    ids=["length", "no message", "array of 4 billion", "nested", "object", "truncated"],
)
def test_what_is_no_batch_is_never_decoded_further(sent: bytes) -> None:
    """Neither a length nor a nesting costs more than the bytes that came."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            await one.say(sent)
            assert await one.worker.over is None

    in_loop(body)


def test_a_worker_cannot_take_its_mark_away() -> None:
    """It shares the memory that the daemon looks at; a look into what was cut off would end the daemon by SIGBUS."""

    async def body() -> None:
        async with hostile(SETTINGS, deadline=0.01) as one:
            for size in (0, 2**40):
                with pytest.raises(PermissionError):
                    os.ftruncate(one.mark.descriptor, size)
            assert await one.worker.over == Hung("", "run")

    in_loop(body)


def test_a_frame_that_never_ends_holds_a_bounded_buffer() -> None:
    """The largest frame is 4 MiB."""
    with pytest.raises(ValueError, match="frame"):
        take_frames(bytearray((4 * 2**20 + 1).to_bytes(4, "little")))


ETHERNET = [
    name for name, one in CATALOGUE.items()
    if one.labels == ("device",) and re.fullmatch(r"sysfs /sys/class/net/\*/(?:statistics/)?\w+(?:,.*)?", one.origin)
]  # fmt: skip


def test_a_host_with_five_thousand_interfaces_is_taken() -> None:
    """With physical_only off those of all containers are read."""
    rows = [
        reading(*((metric, (f"veth{number:08x}",)) for metric in ETHERNET), device=f"veth{number:08x}")
        for number in range(5000)
    ]

    async def body() -> None:
        async with hostile(HOST) as one:
            assert len((await one.gave(readings=rows)).blocks) == 5000

    in_loop(body)


def test_a_driver_with_72_gpus_that_see_each_other_is_taken() -> None:
    """As one node of a whole rack would be: links with all their counters, and each pair."""
    links = [
        name for name, metric in CATALOGUE.items() if metric.labels == ("gpu", "pci_bus_id", "link")
    ]  # fmt: skip
    slots = [f"00000000:{number:02x}:00.0" for number in range(72)]
    rows = [
        reading(*((name, (str(gpu), slot, str(link))) for name in links for link in range(18)), device=slot)
        for gpu, slot in enumerate(slots)
    ]
    pairs = [
        reading(*(("commwatch_gpu_p2p_status", (str(gpu), slot, str(number), peer, capability))
                  for number, peer in enumerate(slots) for capability in "abcdef"), device=slot)
        for gpu, slot in enumerate(slots)
    ]  # fmt: skip

    async def body() -> None:
        async with hostile(DRIVER) as one:
            for some in (rows, pairs):
                assert len((await one.gave(readings=some)).blocks) == 72

    in_loop(body)


def test_text_is_made_harmless() -> None:
    """Control characters and long labels do not reach the page, the log or a terminal; nothing else is changed."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            long = "v" * 5000
            collected = await one.gave(
                readings=[reading((LABELLED, ("a\x1b[2J\nb", long, "ü ok")))],
                absences=[absence("", "unreadable", "one\r\n\x1b]0;two" + "z" * 3000)],
            )
            ((_, shown),) = collected.blocks[""].layout.series
            assert shown == ("a?[2J?b", "v" * (LONGEST_LABEL - 1) + "…", "ü ok")
            (gap,) = collected.absences
            assert gap.detail.startswith("one???]0;two")
            assert len(gap.detail) == 1024

    in_loop(body)


def test_names_of_devices_are_made_harmless() -> None:
    """Those of readings, failures and events become label values; a terminal shows them as text."""
    name, shown = "\x1b[2Jgpu\n0", "?[2Jgpu?0"
    event = {"kind": "xid", "device": name, "code": name, "origin": "nvml", "time": 1.0}

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            collected = await one.gave(
                readings=[reading((LABELLED, labels(1)), device=name)], absences=[absence(name, "unreadable")],
                events=[event], aliases={name: name},
            )  # fmt: skip
            assert [*collected.blocks] == [gap.device for gap in collected.absences] == [shown]
            assert [(event.device, event.code) for event in collected.events] == [(shown, shown)]
            assert one.worker.aliases == {shown: shown}
            again = await one.gave(readings=[(name, 0.0, None, [2])])
            assert again.blocks[shown].values == [2]
            assert (await one.gave()).blocks == {}
            with pytest.raises(GivenUpError):
                await one.gave(readings=[(name, 0.0, None, [3])])

    in_loop(body)


def test_a_time_in_the_future_is_that_of_the_answer() -> None:
    """Else its values would never grow old."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            collected = await one.gave(readings=[reading((LABELLED, labels(1)), at=1e11)])
            assert collected.blocks[""].time <= time.monotonic()

    in_loop(body)


def test_series_stay_few_over_many_answers() -> None:
    """Of a worker that tells other label values each time no more is known than its last answer."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            for number in range(SETTINGS.most_series + 1):
                given = await one.gave(readings=[reading((LABELLED, labels(number)), device=str(number))])
                assert [*given.blocks] == [str(number)]
            with pytest.raises(GivenUpError):
                await one.gave(readings=[("0", 0.0, None, [1])])

    in_loop(body)


def test_devices_stay_few_over_many_answers() -> None:
    """Those of all collectors together count: a worker that names more is given up at the 8,193rd."""

    async def body() -> None:
        async with hostile(HOST) as one:
            rows = [
                reading(("commwatch_ethernet_carrier", (str(number),)), device=str(number)) for number in range(8193)
            ]
            one.worker.order(Order("other", 1.0, now=True))
            await one.gave(readings=rows[:4096])
            assert len((await one.gave(collector="other", readings=rows[4096:8192])).blocks) == 4096
            with pytest.raises(GivenUpError):
                await one.gave(readings=rows[:4097])

    in_loop(body)


def test_a_flood_of_runs_is_given_up() -> None:
    """Of what is ordered each second a few come early, and no more."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            await one.gave(readings=[reading((LABELLED, labels(1)))])
            for _ in range(3 * MOST_EARLY):
                await one.say(encoded(readings=[("", 0.0, None, [1])]))
                await asyncio.sleep(0.001)
            assert await one.worker.over is None
            assert len(one.taken) <= 2 * MOST_EARLY

    in_loop(body)


def test_a_worker_that_waits_to_be_read_can_be_stopped() -> None:
    """Its messages fill the socket: it must still reach its orders."""

    async def body() -> None:
        async with hostile(SETTINGS) as one:
            telling = asyncio.ensure_future(one.say(8 * encoded(resume=bytes(2**20))))
            stopping = asyncio.ensure_future(one.worker.stop(60.0))
            await telling
            assert one.process.stdin is not None
            one.process.stdin.close()
            assert await stopping

    in_loop(body)


def test_jobs_are_parsed_where_they_can_say_little() -> None:
    """The processes that read files of jobs fill a few series of their own, and no other."""
    assert JOBS.prefixes == ("commwatch_flight_recorder_", "commwatch_nccl_inspector_", "commwatch_nccl_log_")
    assert SETTINGS.prefixes == ("commwatch_nccl_setting_",)
    assert (JOBS.most_series, SETTINGS.most_series) == (650, 80)  # 12 operations by 6 sizes and 2 scopes, 4 of each


def test_a_worker_of_ours_is_understood(tmp_path: Path) -> None:
    """The bounds are wide enough for the real process."""

    async def body() -> None:
        settings = ReaderSettings.of(Config(paths=Paths(procfs=str(tmp_path))), [SOURCES["nccl_logs"]], None)
        reader = Reader(replace(settings, deadline=60.0, start_deadline=60.0))
        try:
            collected = await reader.now("nccl_logs")
            assert next(name for name, _ in collected.blocks[""].layout.series) == FILES
        finally:
            await reader.stop(60.0)

    in_loop(body)


class _Excusing(Starvation):
    def excuses(self, pid: int, since: Sample, seconds: float) -> bool:
        return True


def test_what_comes_too_late_of_a_starved_worker_is_taken(tmp_path: Path) -> None:
    """The reading counts as missing; an event, which arrives only once, is not lost."""
    xid = {"kind": "xid", "device": "0000:3b:00.0", "code": "79", "origin": "nvml", "time": 1.0}

    async def body() -> None:
        async with hostile(DRIVER, starvation=_Excusing(tmp_path), deadline=0.01) as one:
            while not one.starving:
                await asyncio.sleep(0.001)
            late = await one.gave(events=[xid], resume=b"here")
            assert one.starving[0] == "run"
            assert ([event.code for event in late.events], late.resume) == (["79"], b"here")

    in_loop(body)
