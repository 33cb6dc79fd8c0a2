"""commwatch diagnose --settings: files in all forms and processes, held against a machine; values are never shown."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import pytest

from commwatch.config.settings import Config, Paths
from commwatch.errors import UsageError
from commwatch.probes.by_hand.trial import SettingGain, SettingTrial, keep_trial
from commwatch.workers import by_hand
from support.command_line import run_command
from support.passes import in_one_pass
from support.topologies import simulated_topology

SECRET = "hunter2"  # noqa: S105 - it must not be printed


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The network of a machine with two RoCE devices, read in another process."""
    folder = tmp_path_factory.mktemp("machine")
    for name in ("mlx5_0", "mlx5_1"):
        port = folder / f"sys/class/infiniband/{name}/ports/1"
        (port / "gids").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "link_layer").write_text("Ethernet\n")
        (port / "gids/3").write_text("0000:0000:0000:0000:0000:ffff:c612:0001\n")
    (folder / "sys/class/net/eth0").mkdir(parents=True)
    (folder / "sys/class/net/eth0/operstate").write_text("up\n")
    return asyncio.run(by_hand.ask_network(str(folder / "sys"), str(folder / "proc"), 30.0))


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """Eight GPUs on NVLink with this network, known without a look at this machine."""

    async def ask_network(sysfs: str, procfs: str, deadline: float) -> Any:
        return network

    monkeypatch.setattr(by_hand, "read_topology", lambda config: simulated_topology("h100x8"))
    monkeypatch.setattr(by_hand, "ask_network", ask_network)


def run_settings(names: list[str], config: Config, *, as_json: bool) -> int:
    return run_command(config, "diagnose", "--settings", *names, *["--json"] * as_json)


def given(folder: Path, text: str, name: str = "job.env") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def notes(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Code and variable of what was printed as JSON."""
    answer = json.loads(capsys.readouterr().out)
    return [(note["code"], note["variable"]) for file in answer["files"] for note in file["notes"]]


@in_one_pass(
    "data, code",
    [
        (b"NCCL_P2P_DISABLE=1\nA=b=c\n", "p2p_off"),
        (b"A=one\0NCCL_DEBUG_FILE=Ring\nTree\0NCCL_P2P_DISABLE=1\0", "p2p_off"),
        (b"declare -x NCCL_P2P_DISABLE=\"1\"\ndeclare -x NAMED\nexport B='c'\n", "p2p_off"),
        (b"export NCCL_P2P_DISABLE='1'\n", "p2p_off"),
        (b'declare -x NCCL_P2P_DISABLE="1\nsecond"\nB=1\n', "p2p_off"),
        (b"NCCL_P2P_DISABLE=0\nNCCL_P2P_DISABLE=1\n", ""),
        (b"BASH_FUNC_x%%=() {\n}\nnot a setting\n=\nNCCL_P2P_DISABLE=1\n", "p2p_off"),
        (b"NCCL_P2P_DISABLE=\xff\n", "unreadable_number"),
        (b'NCCL_P2P_DISABLE="1"\n', "unreadable_number"),
    ],
)
def test_environments_are_read_as_they_are_printed(
    data: bytes, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By env, env -0, export -p of a shell, or the kernel; of equal names the first counts."""
    (tmp_path / "job.env").write_bytes(data)
    run_settings([str(tmp_path / "job.env")], Config(), as_json=True)

    assert [found for found, variable in notes(capsys) if variable == "NCCL_P2P_DISABLE"] == [code] * bool(code)


def test_a_harmful_setting_is_told_without_its_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; names and verdicts are shown, values in no form."""
    name = given(tmp_path, f"NCCL_P2P_DISABLE=1\nNCCL_TOKEN={SECRET}\nNCCL_IB_TIMEOUT={SECRET}\nHOME=/nowhere\n")

    assert run_settings([name], Config(), as_json=False) == 1
    text = capsys.readouterr().out
    assert run_settings([name], Config(), as_json=True) == 1
    told = capsys.readouterr().out

    assert "harmful: NCCL_P2P_DISABLE [p2p_off]" in text
    assert "NCCL_TOKEN" in text
    assert "Compared with this machine: 8 GPUs, 2 RDMA ports." in " ".join(text.split())
    assert SECRET not in text + told
    assert json.loads(told)["schema"] == "commwatch-settings-audit/1"


def test_a_file_of_nccl_is_read_as_nccl_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In nccl.conf ``export`` is part of the name, in an environment that was printed it is not."""
    text = "export NCCL_P2P_DISABLE=1\n"

    assert run_settings([given(tmp_path, text, "nccl.conf")], Config(), as_json=True) == 1
    assert notes(capsys) == [("malformed_line", "this file")]
    assert run_settings([given(tmp_path, text)], Config(), as_json=True) == 1
    assert notes(capsys) == [("p2p_off", "NCCL_P2P_DISABLE")]


def test_clean_settings_exit_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A note is no trouble either."""
    clean = given(tmp_path, "NCCL_DEBUG=WARN\nHOME=/nowhere\n")
    noted = given(tmp_path, "NCCL_SOME_PLUGIN=1\nNCCL_DEBUG=WARN\nHOME=/nowhere\n", "other.env")

    assert run_settings([clean], Config(), as_json=False) == 0
    assert "Nothing to say." in capsys.readouterr().out
    assert run_settings([clean, noted], Config(), as_json=True) == 0
    assert notes(capsys) == [("unknown_name", "NCCL_SOME_PLUGIN")]


def test_an_environment_comes_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``env | commwatch diagnose --settings -``."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"NCCL_TIMEOUT=30\nNCCL_DEBUG=WARN\n")))

    assert run_settings(["-"], Config(), as_json=True) == 1
    assert notes(capsys) == [("never_read", "NCCL_TIMEOUT")]


@pytest.mark.parametrize(
    "text",
    [None, "", "no setting\n", "x" * (4 * 2**20 + 1), "".join(f"NCCL_{number}=1\n" for number in range(513))],
    ids=["missing", "empty", "other", "long", "many"],
)
def test_what_is_no_environment_is_refused(tmp_path: Path, text: str | None) -> None:
    """A file that is missing, empty, of something else or far too long is wrong use, not clean."""
    name = str(tmp_path / "missing") if text is None else given(tmp_path, text)

    with pytest.raises(UsageError) as refused:
        run_settings([name], Config(), as_json=False)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("as_json", [True, False])
def test_a_name_does_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """One that is no text, and one that would move the cursor."""
    names = [given(tmp_path, "NCCL_DEBUG=WARN\nHOME=/nowhere\n", name) for name in ("\udcff.env", "a\x1b[2Jb.env")]

    assert run_settings(names, Config(), as_json=as_json) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_number_that_no_process_has_is_a_file(tmp_path: Path) -> None:
    """However long it is."""
    with pytest.raises(UsageError, match="No such file"):
        run_settings(["9" * 200], Config(), as_json=False)
    with pytest.raises(UsageError, match="File name too long"):
        run_settings(["9" * 5000], Config(), as_json=False)


def process(folder: Path, pid: int, *settings: str) -> None:
    """A process with these variables."""
    home = folder / str(pid)
    home.mkdir(parents=True)
    (home / "environ").write_bytes(b"".join(f"{one}\0".encode() for one in ("HOME=/nowhere", *settings)))
    (home / "root").symlink_to(folder)
    (home / "cwd").symlink_to(folder)


def test_processes_are_audited_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By their numbers; what is said names them."""
    config = Config(paths=Paths(procfs=str(tmp_path)))
    process(tmp_path, 4100, "NCCL_DEBUG=WARN")
    process(tmp_path, 4101, "NCCL_DEBUG=WARN", "NCCL_P2P_DISABLE=1")

    assert run_settings(["4100", "4101"], config, as_json=True) == 1
    [processes] = json.loads(capsys.readouterr().out)["files"]
    assert (processes["name"], processes["kind"]) == ("4100, 4101", "processes")
    assert [(note["code"], note["pids"]) for note in processes["notes"]] == [("p2p_off", [4101])]
    assert run_settings(["4100"], config, as_json=False) == 0


def test_processes_that_are_not_read_are_not_clean(tmp_path: Path) -> None:
    """One that cannot be read, and one that is not there."""
    (tmp_path / "2").mkdir()
    (tmp_path / "2/comm").write_text("kthreadd\n")
    process(tmp_path, 4100)
    (tmp_path / "4100/environ").write_bytes(b"")  # a title was written over it

    for name, said in (("4100", "not read: process 4100"), ("4101", "not found")):
        with pytest.raises(UsageError, match=said):
            run_settings([name], Config(paths=Paths(procfs=str(tmp_path))), as_json=False)


def trial(setting: str, *words: Literal["faster", "slower", "same"]) -> SettingTrial:
    """What a setting gave for as many sizes."""
    name, _, value = setting.partition("=")
    gains = tuple(
        SettingGain(
            probe="all_reduce", operation="all_reduce", purpose="bandwidth", size_bytes=2**20 * (place + 1), ranks=8,
            without_seconds=1.0, with_seconds=1.0, gain_percent={"faster": 9.0, "slower": -9.0, "same": 0.0}[word],
            word=word,
        )
        for place, word in enumerate(words)
    )  # fmt: skip
    return SettingTrial(settings={name: value}, taken_at=1.8e9, nccl_version="", gains=gains)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "Measure what it gains here, with the job's own value: commwatch probe --with NCCL_P2P_DISABLE=VALUE."),
        (("same", "faster"), "Keep it where the job has the value that was measured"),
        (("slower",), "next: Take it out."),
        (("faster", "slower"), "keep it only where the job's own sizes gain"),
        (("same",), "It makes no difference that was measured here. Take it out."),
    ],
)
def test_what_makes_transfers_faster_or_slower_is_advised_on_by_measurement(
    words: tuple[Literal["faster", "slower", "same"], ...], told: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The newest trial of the setting alone counts; one of several settings says nothing of each."""
    config = Config(paths=Paths(state=str(tmp_path)))
    both = trial("NCCL_P2P_DISABLE=1", "slower")
    keep_trial(config, msgspec.structs.replace(both, settings={"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring"}))
    if words:
        keep_trial(config, trial("NCCL_P2P_DISABLE=1", *words))
    name = given(tmp_path, f"NCCL_P2P_DISABLE=1\nNCCL_PSK={SECRET}\nHOME=/nowhere\n")

    run_settings([name], config, as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    run_settings([name], config, as_json=True)
    [note] = [note for note in json.loads(capsys.readouterr().out)["files"][0]["notes"] if note["code"] == "p2p_off"]

    assert told in text
    assert bool(note["measure"]) == (not words)
    assert len(note["trials"]) == bool(words)
    assert ("2027-01-15: all_reduce 1 MiB" in text) == bool(words)


def test_what_no_probe_of_one_node_uses_is_measured_over_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command for it is that of nccl-tests."""
    run_settings([given(tmp_path, "NCCL_CROSS_NIC=1\nHOME=/nowhere\n")], Config(), as_json=False)

    text = " ".join(capsys.readouterr().out.split())
    assert "No probe of one node uses it" in text
