"""A node is recorded beneath the unchanged readers and replayed beneath them; what is no recording is refused."""

from __future__ import annotations

import ctypes
import errno
import gzip
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.settings import Config, Paths, Simulation
from commwatch.config.yaml_file import Override, load_config
from commwatch.errors import ConfigError, UsageError
from commwatch.sources import files
from commwatch_rehearsal.simulation.recording.answers import RecordedLibrary
from commwatch_rehearsal.simulation.recording.file import RecordingFile, read_recording
from commwatch_rehearsal.simulation.recording.lines import Head
from commwatch_rehearsal.simulation.recording.names import Names
from commwatch_rehearsal.simulation.recording.node import RecordedNode
from support.command_line import run_command
from support.daemon import command
from support.passes import in_one_pass
from support.recorded import END, FILE, HEAD, STATISTICS, packed, recorded_and_replayed, whole

FAULTS = """
- {fault: xid, gpu: 0, at: 3605s, xid: 31}
- {fault: ethernet_down, interface: ens9np0, at: 3605s}
- {fault: gpu_reset_required, gpu: 0, at: 3615s}
"""


def test_a_replayed_node_has_the_page_of_the_recorded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is the same at each of three times, also while parts fail; tests/proof does it with every preset."""
    _, lived, replayed = recorded_and_replayed("h200x1", FAULTS, True, tmp_path, monkeypatch)
    assert len(lived[1]) > 500
    assert lived[0] != lived[1]
    assert replayed == lived


def test_names_are_replaced_and_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No identity of the node is in the file, and its page has the same series but for those names."""
    file, lived, replayed = recorded_and_replayed("h200x1", "", False, tmp_path, monkeypatch)
    content = gzip.decompress(file.read_bytes()).decode()
    for name in ("2c8e71f0-5a9b-d346-0e17-f94b63c8d205", "1654224017731", "node1"):
        assert name not in content
        assert name not in "".join(line for page in replayed for line in page)
    assert [len(page) for page in replayed] == [len(page) for page in lived]
    assert len(set(replayed[1]) ^ set(lived[1])) < 10


@in_one_pass(
    "path, content, secret",
    [
        ("class/infiniband/mlx5_0/node_guid", "08c0:eb03:0012:3456", "08c0:eb03:0012:3456"),
        ("class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:08c0:eb03:0012:3456", "08c0:eb03:0012:3456"),
        ("class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c0a8:0102", "c0a8:0102"),
        ("class/infiniband/mlx5_0/ports/1/lid", "0x041a", "0x041a"),
        ("class/infiniband/mlx5_0/node_desc", "worker-17 mlx5_0", "worker-17"),
        ("class/net/ens1/address", "b8:ce:f6:12:34:56", "b8:ce:f6:12:34:56"),
        ("sys/kernel/random/boot_id", "0fe33e63-7e3b-4a09-a7f0-2d6a3ad00b11", "0fe33e63-7e3b"),
        ("class/net/ens1/some", "peer 192.168.17.23 of fe80::bace:f6ff:fe12:3456", "192.168.17.23"),
        ("a/b/serial", "MT2249X01234", "MT2249X01234"),
        ("x", "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=train_secret, Ch 1", "train_secret"),
        ("v", "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=a,secret,b, Ch 1", "secret"),
        ("w", "NVRM: GPU Board Serial Number: 16522490135", "16522490135"),
        ("y", "built by alice@builder17 in /home/alice", "alice"),
        ("y", "built by alice@builder17 in /home/alice", "builder17"),
    ],
)
def test_a_name_is_replaced_by_one_of_its_form(path: str, content: str, secret: str) -> None:
    """The same one each time, another one for another name, and none where names are kept."""
    names = Names()
    new = names.file("sys", path, content)
    assert new != content
    assert names.file("sys", path, content) == new
    assert Names(keep=True).file("sys", path, content) == content
    if len(content.split()) == 1 and not path.endswith(("desc", "lid")):
        assert [one.isalnum() for one in new] == [one.isalnum() for one in content]
    assert secret not in new


@in_one_pass(
    "content",
    [
        "0000:17:00.0", "00:00:00:00:00:00", "0000:0000:0000:0000:0000:0000:0000:0000", "28.39.1002",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07", "4: ACTIVE", "400 Gb/sec (4X NDR)",
        "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "96.00.74.00.01",
    ],
)  # fmt: skip
def test_what_is_no_name_is_kept(content: str) -> None:
    assert Names().text(content) == content


def test_a_name_is_the_same_one_wherever_it_stands() -> None:
    """A port's GUID in its GID and in the kernel's hexadecimal form; a UUID with the letters of another case."""
    names = Names()
    guid = names.text("08c0:eb03:0012:3456")
    assert names.text("fe80:0000:0000:0000:08c0:eb03:0012:3456") == f"fe80:0000:0000:0000:{guid}"
    assert names.text("0x08c0eb0300123456") == f"0x{guid.replace(':', '')}"
    uuid = "0fe33e63-7e3b-4a09-a7f0-2d6a3ad00b11"
    assert names.text(f"GPU-{uuid}") == f"GPU-{names.text(uuid)}"
    assert names.text(uuid.upper()) == names.text(uuid).upper()


def test_a_file_that_failed_fails_again(tmp_path: Path, replay: Callable[..., RecordedNode]) -> None:
    """By the same error, beneath the readers; before the recording's first answer it fails already."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(
        whole({**FILE, "at": 1, "path": "a/speed", "error": "EINVAL"}, {**FILE, "at": 5, "path": "a/speed"})
    )
    now = 100.0
    node = replay(file, None, 100.0, lambda: now)
    tree = tmp_path / "sys"
    node.write_sysfs(tree)
    with pytest.raises(OSError, match="Invalid argument") as caught:
        files.read(f"{tree}/a/speed")
    assert caught.value.errno == errno.EINVAL
    now = 106.0
    node.write_sysfs(tree)
    assert files.read(f"{tree}/a/speed") == b"1\n"


def test_the_files_of_a_closed_node_fail_no_more(tmp_path: Path, replay: Callable[..., RecordedNode]) -> None:
    """Else every reader of a process that has played many recordings would go through the layers of all of them."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(whole({**FILE, "at": 1, "path": "a/speed", "error": "EINVAL"}))
    node = replay(file, None, 0.0)
    node.write_sysfs(tmp_path / "sys")

    node.close()

    files.read(f"{tmp_path}/sys/a/speed")


@pytest.mark.parametrize(("loops", "mtus"), [(False, "1233333"), (True, "1231231")])
def test_after_its_end_a_recording_holds_or_begins_again(
    loops: bool, mtus: str, tmp_path: Path, replay: Callable[..., RecordedNode]
) -> None:
    """By the second, of a recording of three; a file that was not there at its begin is gone again."""
    file = tmp_path / "node.cwrec"
    late = {**FILE, "path": "late", "error": "ENOENT"}
    answers = [{**FILE, "at": at, "content": f"{at + 1}"} for at in range(3)]
    file.write_bytes(whole(*answers, late, {**FILE, "at": 2, "path": "late"}, seconds=3.0))
    now, tree, shown = 0.5, tmp_path / "sys", ""
    node = replay(file, None, 0.0, lambda: now, loops)
    for _ in mtus:
        node.write_sysfs(tree)
        shown += files.read(f"{tree}/{FILE['path']}").decode()
        assert (tree / "late").exists() == (shown[-1] == "3")
        now += 1.0
    assert shown == mtus


LONG = "x" * 5_000_000
CALL = {"is": "nvml", "at": 0, "code": 0}
LINK = {"is": "folder", "at": 0, "root": "sys", "path": "class/net"}
HOSTILE: dict[str, bytes | Callable[[], bytes]] = {
    "empty": b"",
    "text": b"not a recording\n",
    "no gzip": b"\x1f\x8b\x08\x00" + b"\xff" * 64,
    "foreign gzip": gzip.compress(b"hello\n"),
    "foreign JSON": packed([{"some": "thing"}]),
    "cut packed": whole(*[FILE] * 50)[:-30],
    "cut line": gzip.compress(gzip.decompress(whole(FILE))[:-5]),
    "no end": packed([HEAD, FILE]),
    "lines missing": packed([HEAD, FILE, {**END, "lines": 7}]),
    "more after the end": packed([HEAD, {**END, "lines": 1}, FILE]),
    "bytes after the end": whole(FILE) + b"more",
    "two heads": whole(HEAD),
    "later format": packed([{**HEAD, "format": 2}, {**END, "lines": 1}]),
    "unknown line": whole({"is": "command", "run": "id"}),
    "unknown key": whole({**FILE, "run": "id"}),
    "bomb": lambda: gzip.compress(b"\0" * 200_000_000, 1),
    "bomb of lines": lambda: gzip.compress(b"\n" * 3_000_000, 1),
    "long line": lambda: whole({**FILE, "content": LONG}),
    "parent": whole({**FILE, "path": "../../etc/cron.d/x"}),
    "parent inside": whole({**FILE, "path": "a/../../b"}),
    "from the root": whole({**FILE, "path": "/etc/passwd"}),
    "empty path": whole({**FILE, "path": ""}),
    "NUL": whole({**FILE, "path": "a\0b"}),
    "long name": whole({**FILE, "path": "n" * 300}),
    "long path": whole({**FILE, "path": "a/" * 1000 + "b"}),
    "no bytes": whole({**FILE, "content": "\u20ac"}),
    "link out": whole({**LINK, "entries": {"eth0": "../../../etc"}}),
    "link to the root": whole({**LINK, "entries": {"eth0": "/etc"}}),
    "name with a slash": whole({**LINK, "entries": {"../../x": ""}}),
    "listed name with a slash": whole({**LINK, "entries": {}, "files": ["../x"]}),
    "through a link": whole({**LINK, "entries": {"eth0": "devices/a"}}, {**FILE, "path": "class/net/eth0/x"}),
    "link to a link": whole({**LINK, "entries": {"a": "b"}}, {**LINK, "path": "", "entries": {"b": "c"}}),
    "through a file": whole(FILE, {**FILE, "path": f"{FILE['path']}/x"}),
    "file and folder": whole(FILE, {**LINK, "path": FILE["path"], "entries": {}}),
    "other root": whole({**FILE, "root": "etc"}),
    "negative time": whole({**FILE, "at": -1}),
    "endless time": whole(FILE, seconds=1e9),
    "time that is none": gzip.compress(gzip.decompress(whole(FILE)).replace(b'"at":0', b'"at":1e999')),
    "late answer": whole({**FILE, "at": 50}),
    "endless GPUs": whole({**CALL, "function": "nvmlDeviceGetCount_v2", "arguments": ["=4"], "memory": ["ffffff7f"]}),
    "endless processes": whole(
        {**CALL, "function": "nvmlDeviceGetComputeRunningProcesses_v3", "arguments": ["="], "memory": ["ffffffff"]}
    ),
    "no hexadecimal": whole({**CALL, "function": "nvmlDeviceGetName", "arguments": ["=4"], "memory": ["0g"]}),
    "many arguments": whole({**CALL, "function": "nvmlDeviceGetName", "arguments": [1] * 100}),
    "many paths": lambda: whole({**LINK, "entries": {f"n{number}": "" for number in range(60_000)}}),
    "wide number": whole({"is": "fields", "at": 0, "gpu": 1, "entries": [[1, 0, 3, 0, 2**64]]}),
    "negative number": whole({"is": "fields", "at": 0, "gpu": 1, "entries": [[1, 0, 3, 0, -1]]}),
    "wide event": whole({"is": "event", "at": 0, "gpu": 1, "kind": 2**70, "data": 0, "instances": [0, 0]}),
    "many statistics": whole({**STATISTICS, "command": "count", "count": 40_000}),
    "statistic far out": whole({**STATISTICS, "command": "numbers", "count": 1, "numbers": [[10**9, 1]]}),
    "wide statistic": whole({**STATISTICS, "command": "numbers", "count": 1, "numbers": [[0, 2**65]]}),
    "long statistic": whole({**STATISTICS, "command": "names", "count": 1, "names": ["n" * 40]}),
    "bad error": whole({**FILE, "error": "rm -rf"}),
    "deep": gzip.compress(b"[" * 100_000 + b"\n"),
}  # fmt: skip
"""Those that take long to make are made by their test, and not whenever the suite is collected."""


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_recording_is_refused_in_one_line(content: bytes | Callable[[], bytes], tmp_path: Path) -> None:
    """The line names the file, and nothing is written."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(content() if callable(content) else content)
    with pytest.raises(ConfigError) as caught:
        RecordedNode(file, None, 0.0)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    assert len(message) < 400
    assert [one.name for one in tmp_path.iterdir()] == ["node.cwrec"]


def test_a_recording_that_is_played_once_ends_the_daemon_each_time(tmp_path: Path) -> None:
    """Though the node of its state directory is over when it starts for the second time."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(whole(FILE, seconds=0.5))
    arguments = ("--simulate", str(file), "--simulate.playback", "once", "--path.state", str(tmp_path / "state"))
    for _ in range(2):
        ended = command("run", *arguments, "--web.listen-address", "127.0.0.1:0", "--log.format", "json")
        assert ended.returncode == 0, ended.stderr
        said = [json.loads(line)["msg"] for line in ended.stderr.splitlines()]
        assert [one for one in said if one in ("ready", "stopping", "stopped")] == ["ready", "stopping", "stopped"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"function": "nvmlDeviceGetCount_v2", "arguments": ["=4"], "code": 0, "memory": ["00" * 4096]}, 999),
        ({"function": "nvmlDeviceGetCount_v2", "arguments": ["=4"], "code": 0, "memory": ["08"]}, 0),
    ],
)
def test_an_answer_never_writes_past_the_callers_memory(line: Any, code: int, tmp_path: Path) -> None:
    """What does not fit is an unknown error, and the memory is as it was."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(whole({"is": "nvml", "at": 0, **line}))
    library = RecordedLibrary(RecordedNode(file, None, 0.0))
    count = ctypes.c_uint(0)
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == code
    assert count.value == (8 if code == 0 else 0)
    with pytest.raises(AttributeError):
        library.nvmlDeviceSetPowerManagementLimit(1)


@pytest.mark.parametrize(
    ("lines", "code"),
    [([], 9), ([{"is": "nvml", "at": 0, "function": "nvmlInitWithFlags", "arguments": [0], "code": 12}], 12)],
)
def test_a_driver_that_was_not_there_is_not_there(lines: list[Any], code: int, tmp_path: Path) -> None:
    """Not loaded where nobody opened it; else by the error that opening it gave."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(whole(*lines))
    assert RecordedLibrary(RecordedNode(file, None, 0.0)).nvmlInitWithFlags(0) == code


def test_a_recording_replaces_no_file_and_is_for_its_owner(tmp_path: Path) -> None:
    """It has mode 0600; a file, and a link that leads nowhere, are left as they are."""
    file, link = tmp_path / "node.cwrec", tmp_path / "link.cwrec"
    RecordingFile(file, Head(1, "0.1.0")).close(1.0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_recording(file).seconds == 1.0
    link.symlink_to(tmp_path / "elsewhere")
    for path in (file, link):
        with pytest.raises(UsageError, match="exists already"):
            RecordingFile(path, Head(1, "0.1.0"))
    assert not (tmp_path / "elsewhere").exists()


@in_one_pass(
    "arguments, message",
    [
        ((), "-o FILE.cwrec"),
        (("-o", "node.txt"), "ends in .cwrec"),
        (("-o", "a.cwrec", "--for", "2h"), "expected 1s to 10m"),
        (("-o", "a.cwrec", "--for", "soon"), "--for soon"),
        (("-o", "a.cwrec", "--list", "b.cwrec"), "either --list"),
        (("-o", "/nonexistent/a.cwrec"), "No such file"),
    ],
)
def test_wrong_use_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_command(Config(), "record", *arguments)


def test_the_command_records_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second of a simulated node; the list names functions, files and what the calls took."""
    file = tmp_path / "node.cwrec"
    config = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="a10x2"))
    assert run_command(config, "record", "-o", str(file), "--for", "1s") == 0
    assert run_command(config, "record", "--list", str(file)) == 0
    listed = capsys.readouterr().out
    for word in ("Names were replaced", "nvmlDeviceGetFieldValues", "sys/devices/", "calls"):
        assert word in listed


def test_probes_are_off_on_a_recording_without_a_file_of_faults() -> None:
    """Nobody ran a collective; under faults the node is a rehearsal, and probes are simulated on its parts."""
    preset = Override(("simulation", "preset"), "node.cwrec", "--simulate")
    assert not load_config(None, [preset]).probes.enabled
    assert load_config(None, [preset, Override(("simulation", "faults"), "f.yaml", "--simulate.faults")]).probes.enabled
