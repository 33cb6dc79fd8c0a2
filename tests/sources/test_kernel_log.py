"""The kernel log read record by record: from a script, from a pipe that keeps records apart, from this machine."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.config.settings import KernelLogSection, Sources
from commwatch.readings import Batch, SourceUnavailable
from commwatch.sources import kernel_log
from commwatch.sources.base import Origin
from commwatch.sources.kernel_log import HandedKernelLog, KernelLogDevice, KernelLogSource, make_source
from commwatch_exporters.snapshot import Layout, Value

BOOT = "0b1c2d3e-0000-4000-8000-000000000000"
NOW = 1_700_000_000.0
XID = "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(sequence: int, text: str = XID, microseconds: int = 0, level: int = 4) -> bytes:
    return f"{level},{sequence},{microseconds},-;{text}\n".encode()


class ScriptedLog:
    """A log that gives what the test put into it."""

    def __init__(self) -> None:
        self.script: deque[bytes | OSError] = deque()
        self.closed = False

    def read(self) -> bytes | None:
        if not self.script:
            return None
        answer = self.script.popleft()
        if isinstance(answer, OSError):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


class Node:
    """A source over a scripted log, with clocks that stand until they are moved; the node booted 1,000 s ago."""

    def __init__(self, procfs: Path, user_messages: bool = False) -> None:
        self.now, self.uptime = NOW, 1000.0
        self.log = ScriptedLog()
        self.source = KernelLogSource(
            lambda: self.log, procfs, user_messages, clock=lambda: self.now, monotonic=lambda: self.uptime
        )
        self.open()

    def open(self) -> None:
        self.source.open(lambda device: None, frozenset(), None)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.uptime += seconds

    def run(self, *answers: bytes | OSError) -> Batch:
        self.log.script.extend(answers)
        return self.source.collect("kernel_log")


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    file = tmp_path / "sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text(f"{BOOT}\n")
    return tmp_path


@pytest.fixture
def node(procfs: Path) -> Node:
    return Node(procfs)


def losses(batch: Batch) -> Value:
    (readings,) = batch.readings
    Layout(readings.series)
    return readings.values[0]


def test_an_event_carries_what_its_record_says(node: Node) -> None:
    """Boot and number of the record, the kernel's time as wall clock, and the text."""
    (event,) = node.run(record(1234, microseconds=400_000_000)).events

    assert (event.kind, event.device, event.code, event.origin) == ("xid", "0000:17:00.0", "79", "kernel_log")
    assert (event.boot, event.sequence) == (BOOT, 1234)
    assert event.time == pytest.approx(NOW - 600)
    assert event.text.endswith("GPU has fallen off the bus.")


def test_other_lines_tell_nothing(node: Node) -> None:
    """Lines of other drivers, chatter of this one, and what is no record."""
    batch = node.run(record(1, "usb 1-1: new device"), record(2, "NVRM: loading"), b"NVRM: Xid", b"")

    assert batch.events == []
    assert losses(batch) == 0


def test_a_line_that_a_program_wrote_does_not_count(node: Node, procfs: Path) -> None:
    """The kernel marks it by its facility; for a rehearsal it can be let in."""
    by_program = record(1, level=8 + 4)

    assert node.run(by_program).events == []
    assert len(Node(procfs, user_messages=True).run(by_program).events) == 1


def test_the_time_of_a_live_event_is_right_though_the_clock_of_the_kernel_drifts(node: Node) -> None:
    """What was not there when the log was last empty came since; and nothing comes from the future."""
    node.run()
    node.wait(2)

    slow, fast = node.run(record(1, microseconds=900_000_000), record(2, microseconds=1_100_000_000)).events

    assert (slow.time, fast.time) == (NOW, NOW + 2)


def test_a_loss_is_counted_and_the_log_goes_on(node: Node) -> None:
    """After EPIPE comes the oldest record that is left; the count stays."""
    batch = node.run(record(10, "x"), BrokenPipeError(), record(15))
    assert (losses(batch), len(batch.events)) == (1, 1)

    assert losses(node.run(BrokenPipeError(), record(17, "x"))) == 2
    assert losses(node.run()) == 2


def test_a_log_that_overtakes_its_reader_is_left_until_the_next_run(node: Node) -> None:
    """Two losses in a row end the run."""
    assert node.run(BrokenPipeError(), BrokenPipeError(), record(9)).events == []

    assert len(node.run().events) == 1


def test_a_run_is_bounded_and_the_next_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large log is read in several runs, in order; the time of its records is theirs until it was read to its end."""
    monkeypatch.setattr(kernel_log, "RECORDS_PER_RUN", 3)
    sequences = [event.sequence for event in node.run(*(record(number) for number in range(5))).events]
    node.wait(2)
    rest = node.run().events

    assert (sequences, [event.sequence for event in rest]) == ([0, 1, 2], [3, 4])
    assert rest[0].time == pytest.approx(NOW - 1000)


def test_a_log_that_fails_is_unavailable(node: Node) -> None:
    """An error other than a loss is no empty log."""
    with pytest.raises(SourceUnavailable) as raised:
        node.run(OSError(errno.EIO, "Input/output error"))

    assert raised.value.reason == "unreadable"


def test_an_open_log_is_closed(node: Node) -> None:
    """No device file stays open, and closing twice does no harm."""
    node.source.close()
    node.source.close()

    assert node.log.closed


@pytest.mark.parametrize(
    ("failure", "reason", "words"),
    [
        (
            PermissionError(errno.EPERM, "Operation not permitted", "/dev/kmsg"),
            "no_permission",
            "CAP_SYSLOG, or the open log",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/kmsg"), "not_found", "/dev/kmsg: No such"),
    ],
)
def test_a_log_that_cannot_be_opened_says_why(procfs: Path, failure: OSError, reason: str, words: str) -> None:
    """With dmesg_restrict both ways to it are named."""

    def refuse() -> ScriptedLog:
        raise failure

    source = KernelLogSource(refuse, procfs)
    with pytest.raises(SourceUnavailable, match=words) as raised:
        source.open(lambda device: None, frozenset(), None)

    assert raised.value.reason == reason


def test_without_the_identity_of_the_boot_nothing_is_read(tmp_path: Path) -> None:
    """Records could not be told from those of another boot, and would count twice."""
    with pytest.raises(SourceUnavailable, match="boot_id"):
        Node(tmp_path)


def test_a_process_for_one_device_alone_leaves_the_log_to_the_other(procfs: Path) -> None:
    """They may share the position in it."""

    def refuse() -> ScriptedLog:
        raise AssertionError

    source = KernelLogSource(refuse, procfs)
    source.open(lambda device: None, frozenset(), frozenset({"0000:17:00.0"}))

    assert source.collect("kernel_log") == Batch()


# --- the real device -------------------------------------------------------------------------------------------------
@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KernelLogDevice, int]]:
    """A device over a pipe in packet mode, which gives one record to each read as the log does, and its other end."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    monkeypatch.setattr(os, "open", lambda path, flags: os.dup(reading))
    device = KernelLogDevice()
    monkeypatch.undo()
    yield device, writing
    device.close()
    os.close(reading)
    os.close(writing)


def test_a_read_gives_one_record_and_never_waits(pipe: tuple[KernelLogDevice, int]) -> None:
    """Records are not run together; a long one comes whole; an empty log is no error."""
    device, writing = pipe
    long = record(2, "x" * 3900)
    os.write(writing, record(1))
    os.write(writing, long)

    assert [device.read(), device.read(), device.read()] == [record(1), long, None]


def test_a_file_with_an_end_is_no_kernel_log(procfs: Path) -> None:
    """In some containers /dev/kmsg is /dev/null: that must not look like a healthy node."""
    source = KernelLogSource(lambda: KernelLogDevice("/dev/null"), procfs)
    source.open(lambda device: None, frozenset(), None)
    with pytest.raises(SourceUnavailable, match="not the kernel log"):
        source.collect("kernel_log")
    source.close()


def test_this_machines_own_log_is_read_to_its_end() -> None:
    """Where it may be read: the first run begins with the oldest record, and a later one finds little more."""
    source = KernelLogSource(KernelLogDevice, Path("/proc"))
    try:
        source.open(lambda device: None, frozenset(), None)
    except SourceUnavailable as unavailable:
        pytest.skip(str(unavailable))
    first = source.collect("kernel_log")
    second = source.collect("kernel_log")
    source.close()

    assert losses(first) == losses(second) == 0
    assert source._emptied > 0


# --- a log that was opened for us ------------------------------------------------------------------------------------
class SharedLog:
    """Stands in for the kernel beneath an open log: records, and one position for all who have the descriptor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[bytes] = []
        self.oldest = self.position = 0
        self.descriptor = os.open(os.devnull, os.O_RDONLY)
        monkeypatch.setattr(os, "lseek", self._seek)
        monkeypatch.setattr(os, "read", self._read)

    def add(self, *texts: str) -> None:
        for text in texts:
            self.records.append(record(len(self.records), text))

    def _seek(self, _descriptor: int, offset: int, whence: int) -> int:
        assert (offset, whence) == (0, os.SEEK_SET)
        self.position = self.oldest
        return 0

    def _read(self, _descriptor: int, _length: int) -> bytes:
        if self.position < self.oldest:
            self.position = self.oldest
            raise BrokenPipeError
        if self.position == len(self.records):
            raise BlockingIOError
        self.position += 1
        return self.records[self.position - 1]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedLog]:
    log = SharedLog(monkeypatch)
    yield log
    os.close(log.descriptor)


def read_to_the_end(device: HandedKernelLog) -> list[int]:
    """The numbers of the records that come."""
    return [int(one.split(b",")[1]) for one in iter(device.read, None)]


def test_each_reader_begins_with_the_oldest_record(shared: SharedLog) -> None:
    """Wherever the one before has stopped; and the descriptor is still there when that one has closed its own."""
    shared.add("a", "b")
    first = HandedKernelLog(shared.descriptor)
    assert read_to_the_end(first) == [0, 1]
    first.close()
    shared.add("c")
    second = HandedKernelLog(shared.descriptor)

    assert read_to_the_end(second) == [0, 1, 2]
    assert read_to_the_end(second) == []
    second.close()
    os.fstat(shared.descriptor)


def test_what_another_reader_took_is_read_all_the_same(shared: SharedLog) -> None:
    """One that hung and goes on shares the position: a gap in the numbers makes reading begin again."""
    shared.add("a", "b")
    hung, device = HandedKernelLog(shared.descriptor), HandedKernelLog(shared.descriptor)
    assert read_to_the_end(device) == [0, 1]
    shared.add("c", "d")
    assert read_to_the_end(hung) == [2, 3]
    assert read_to_the_end(device) == []
    shared.add("e")

    assert read_to_the_end(device) == [0, 1, 2, 3, 4]
    shared.add("f")
    assert read_to_the_end(device) == [5]
    device.close()
    hung.close()


def test_a_loss_is_no_sign_of_another_reader(shared: SharedLog) -> None:
    """After EPIPE any record may come."""
    shared.add("a")
    device = HandedKernelLog(shared.descriptor)
    read_to_the_end(device)
    shared.add(*"bcdef")
    shared.oldest = 4

    with pytest.raises(BrokenPipeError):
        device.read()
    assert read_to_the_end(device) == [4, 5]
    device.close()


def test_a_configured_path_goes_before_the_log_that_was_handed_on(procfs: Path, tmp_path: Path) -> None:
    """A configuration that names another file means that one."""
    settings = Sources(kernel_log=KernelLogSection(path=str(tmp_path / "other")))
    source = make_source(Origin(Path("/sys"), procfs, settings, kernel_log=0))

    with pytest.raises(SourceUnavailable, match="other: No such file"):
        source.open(lambda device: None, frozenset(), None)


def test_this_machines_own_log_is_read_by_a_descriptor() -> None:
    """Two readers, one after the other, find the same from the oldest record on."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY)
    except OSError as error:
        pytest.skip(str(error))
    first = HandedKernelLog(descriptor)
    before = read_to_the_end(first)
    first.close()
    second = HandedKernelLog(descriptor)
    after = read_to_the_end(second)
    second.close()
    os.close(descriptor)

    assert before
    assert after[: len(before)] == before
