"""What the commands share, `inventory` and `check-config`: tables, verdicts and exit codes."""

from __future__ import annotations

import importlib.util
import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.__main__ import COMMANDS, main
from commwatch.config.settings import (
    Config,
    Metrics,
    NcclLogsSection,
    NetworkSection,
    Otlp,
    Paths,
    Probes,
    Simulation,
    Sources,
    Web,
)
from commwatch.errors import ConfigError
from commwatch.node.inventory_state import origin_words
from commwatch.node.run import Collected
from commwatch.readings import Absence, SourceUnavailable
from commwatch.state.directory import StateDirectory, state_path
from support.answering import answering
from support.command_line import PARSER, Terminal, run_command
from support.core import ScriptedReader, block, collected
from support.passes import in_one_pass

Output = pytest.CaptureFixture[str]
NOTHING = Sources(**{one.name: one.type(enabled=False) for one in msgspec.structs.fields(Sources)})


# --- what they share ---


@in_one_pass("command", COMMANDS)
def test_a_flag_is_taken_in_full_only(command: str, capsys: Output) -> None:
    """A misspelt flag is an error and not another flag's beginning: it would listen somewhere else."""
    with pytest.raises(SystemExit, match="2"):
        PARSER.parse_args([command, "--web.listen-addres=:1"])

    said = capsys.readouterr().err
    assert "unrecognized arguments: --web.listen-addres" in said or "the following arguments are required" in said
    assert said.startswith(f"usage: commwatch {command} ")


@pytest.mark.parametrize(
    ("given", "hint"), [("diagnos", "did you mean diagnose?"), ("xyzzy", "commwatch --help lists all commands")]
)
def test_an_unknown_command_is_one_line_with_the_nearest_one(given: str, hint: str, capsys: Output) -> None:
    """Exit code 2; a word that is like none leads to the list."""
    assert main([given]) == 2
    assert capsys.readouterr().err == f"commwatch: there is no command {given}; {hint}\n"


@in_one_pass("words", ["rules", "dashboards", "assets", "drill", "cluster plan", "cluster locate"])
def test_a_command_that_reads_no_setting_offers_none(words: str, capsys: Output) -> None:
    """Neither in its help nor on its command line."""
    for arguments, code in ((["--help"], "0"), (["--path.state=/tmp"], "2")):
        with pytest.raises(SystemExit, match=code):
            PARSER.parse_args([*words.split(), *arguments])

    said = capsys.readouterr()
    assert "commwatch run --help" not in said.out
    assert "unrecognized arguments: --path.state" in said.err or "the following arguments are required" in said.err


def test_a_command_that_reads_no_setting_needs_no_right_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules are written where Prometheus runs, whatever a configuration there is worth."""
    (tmp_path / "wrong.yaml").write_text("web: 3\n")
    monkeypatch.setenv("COMMWATCH_CONFIG_FILE", str(tmp_path / "wrong.yaml"))

    assert main(["rules", "--output", str(tmp_path)]) == 0
    assert main(["score"]) == 2


def test_the_state_directory_is_the_configured_one_and_the_simulated_node_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a simulated node learned never mixes with the real node's."""
    monkeypatch.setenv("STATE_DIRECTORY", "/run/a:/run/b")

    assert state_path(Config()) == Path("/run/a")
    assert state_path(Config(paths=Paths(state="/data"))) == Path("/data")
    simulated = Config(paths=Paths(state="/data"), simulation=Simulation(preset="a10x2"))
    assert state_path(simulated) == Path("/data/simulated-a10x2")


# --- inventory ---

COMPLETE: dict[str, Any] = {"kinds": {"gpu": {"expected": 2, "present": 2}}, "missing": []}
BROKEN: dict[str, Any] = {
    "kinds": {
        "gpu": {"expected": 2, "present": 1},
        "nvlink": {"expected": 4, "present": 5},
        "pcie_lane": {"expected": None, "present": 16},
        "ethernet_port": {"expected": 1, "present": None},
    },
    "missing": ["GPU 1 (0000:18:00.0) is missing"],
}


def inventory(state: Path, answer: dict[str, Any], *arguments: str) -> tuple[int, list[str]]:
    """Exit code of the command before a daemon that answers so, and what the daemon was asked."""
    asked: list[str]
    with answering(state, {"inventory": lambda: answer}, {"inventory-accept": lambda: answer}) as asked:
        return run_command(Config(paths=Paths(state=str(state))), "inventory", *arguments), asked


def test_a_table_in_a_pipe_is_plain_columns(tmp_path: Path, capsys: Output) -> None:
    """Aligned with spaces, one line a row, no title, no frame and no space at the end: for grep and awk. Nothing to
    show is no error."""
    code, _ = inventory(
        tmp_path,
        {"kinds": {"gpu": {"expected": 8, "present": None}, "nvlink": {"expected": None, "present": 4}}, "missing": []},
    )
    inventory(tmp_path, {"kinds": {}, "missing": []})

    assert code == 3, "of a part that was not read it is not known whether it is here"
    assert capsys.readouterr().out == (
        "part    expected       present   source  verdict\n"
        "gpu     8              not read  -       -\n"
        "nvlink  not known yet  4         -       -\n"
        "part  expected  present  source  verdict\n"
    )  # fmt: skip


def test_a_table_on_a_terminal_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its title and a frame; every cell is there."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")

    inventory(tmp_path, COMPLETE)

    shown = terminal.getvalue()
    assert all(text in shown for text in ("Inventory", "part", "expected", "gpu", "2", "ok", "━"))


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, True), (io.StringIO, False)])
def test_what_is_waited_for_is_shown_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], shown: bool
) -> None:
    """On standard error, where it is in nobody's way; and it is gone when it is over."""
    error = stream()
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", "xterm")

    run_command(bare(tmp_path), "check-config", "--runtime")

    assert ("trying what the configuration names" in error.getvalue()) is shown
    assert not shown or error.getvalue().endswith("\x1b[1A\x1b[2K")


def test_what_moves_a_cursor_is_an_escape_of_json_and_no_sign_of_a_line(tmp_path: Path, capsys: Output) -> None:
    """JSON itself lets C1, reversed and invisible characters pass; none of the text is lost."""
    config = bare(tmp_path / "\x9b2J \x1b[2J \u202e \u200b \U000e0041 \x7f ä 😀")
    run_command(config, "check-config", "--runtime", "--json")
    shown = capsys.readouterr().out
    assert config.paths.state in [check["detail"] for check in json.loads(shown)]
    assert shown.replace("\n", "").isprintable()
    assert "ä 😀" in shown
    assert shown.startswith('[\n  {\n    "what"')
    assert shown.endswith("]\n")

    run_command(config, "check-config", "--runtime")
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_a_complete_inventory_is_exit_code_0(tmp_path: Path, capsys: Output) -> None:
    """All expected parts are here."""
    code, asked = inventory(tmp_path, COMPLETE)

    assert (code, set(asked)) == (0, {"inventory"})
    assert capsys.readouterr().out == "part  expected  present  source  verdict\ngpu   2         2        -       ok\n"


def test_a_missing_part_is_exit_code_1_and_named(tmp_path: Path, capsys: Output) -> None:
    """What was not learned or not read has no verdict; more than expected is no fault."""
    code, _ = inventory(tmp_path, BROKEN)

    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert [line.split()[-1] for line in lines[1:5]] == ["missing", "ok", "-", "-"]
    assert "not known yet" in lines[3]
    assert "not read" in lines[4]
    assert lines[5:] == ["GPU 1 (0000:18:00.0) is missing"]


@pytest.mark.parametrize(("answer", "expected"), [(COMPLETE, 0), (BROKEN, 1)])
def test_json_has_the_same_exit_code(tmp_path: Path, capsys: Output, answer: dict[str, Any], expected: int) -> None:
    """A script may read either; the daemon's answer is printed as it is."""
    assert inventory(tmp_path, answer, "--json")[0] == expected
    assert json.loads(capsys.readouterr().out) == answer


def test_accept_asks_for_acceptance(tmp_path: Path) -> None:
    """Only the word accept lowers what is expected."""
    assert inventory(tmp_path, COMPLETE, "accept") == (0, ["inventory-accept"])


# --- check-config ---


def check(capsys: Output, config: Config, *, runtime: bool = True) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run the command; returns exit code, and verdict with detail of each check."""
    code = run_command(config, "check-config", "--json", *["--runtime"] * runtime)
    found = json.loads(capsys.readouterr().out)
    return code, {one["what"]: (one["verdict"], one["detail"]) for one in found}


def bare(state: Path, **changes: Any) -> Config:
    """A configuration without sources and probes, on a free port."""
    values: dict[str, Any] = {
        "paths": Paths(state=str(state)), "sources": NOTHING, "probes": Probes(enabled=False),
        "web": Web(listen_addresses=("127.0.0.1:0",)),
    }  # fmt: skip
    return Config(**(values | changes))


def test_without_runtime_only_the_configuration_is_checked(tmp_path: Path, capsys: Output) -> None:
    """Nothing is touched: no directory is made, no port is taken."""
    code, checks = check(capsys, bare(tmp_path / "state"), runtime=False)

    assert (code, list(checks)) == (0, ["configuration", "sources", "probes"])
    assert (checks["sources"][0], checks["probes"]) == ("off", ("off", "probes.enabled"))
    runs = check(capsys, Config(), runtime=False)[1]
    assert runs["probe pairs"] == ("on", "pairs every 24 h, backend auto")
    assert not (tmp_path / "state").exists()


def test_a_source_without_a_path_is_off(capsys: Output) -> None:
    """It is enabled and reads nothing; the setting that is missing is named."""
    code, checks = check(capsys, Config(), runtime=False)

    assert (code, checks["sources"]) == (
        0, ("on", "nvml, network, pci, kernel_log, rdma, ethtool, services, nccl_settings")
    )  # fmt: skip
    assert {what: found for what, found in checks.items() if what.startswith("source ")} == {
        "source nccl_logs": ("off", "no log is configured (sources.nccl_logs.paths)"),
        "source nccl_inspector": ("off", "no folder is configured (sources.nccl_inspector.paths)"),
        "source flight_recorder": ("off", "no folder is configured (sources.flight_recorder.paths)"),
    }
    logs = Config(sources=Sources(nccl_logs=NcclLogsSection(paths=("/var/log/nccl",))))
    assert check(capsys, logs, runtime=False)[1]["sources"][1].endswith("services, nccl_logs, nccl_settings")


def test_a_collector_needs_the_extra(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nothing would be sent: exit code 1, and the command that installs it."""
    config = bare(tmp_path, metrics=Metrics(otlp=Otlp(endpoint="http://collector:4318")))
    monkeypatch.setitem(sys.modules, "commwatch_exporters.otlp", None)

    code, checks = check(capsys, config, runtime=False)

    assert (code, checks["OpenTelemetry"][0]) == (1, "failed")
    assert "pip install 'commwatch[otlp]'" in checks["OpenTelemetry"][1]


def test_wrong_thresholds_are_a_wrong_configuration(tmp_path: Path) -> None:
    """The error is the one of the configuration: exit code 2."""
    file = tmp_path / "thresholds.yaml"
    file.write_text("no_such: {value: 1}\n")

    with pytest.raises(ConfigError, match="no such threshold") as caught:
        run_command(bare(tmp_path, thresholds=str(file)), "check-config")
    assert caught.value.exit_code == 2


def test_what_can_be_had_is_ok(tmp_path: Path, capsys: Output) -> None:
    """State directory and addresses are tried and let go of again."""
    for _ in range(2):
        code, checks = check(capsys, bare(tmp_path / "state"))
        assert code == 0
        assert checks["state directory"] == ("ok", str(tmp_path / "state"))
        assert checks["listen addresses"] == ("ok", "127.0.0.1:0")
        assert checks["headline alerts"][0] == "absent"  # no daemon runs
        assert list(checks) == [
            "configuration", "sources", "probes", "state directory", "listen addresses", "headline alerts"]  # fmt: skip


def test_logs_that_are_configured_are_looked_for(tmp_path: Path, capsys: Output) -> None:
    """How many there are tells whether the paths are right; without any path there is nothing to look for."""
    (tmp_path / "job.log").touch()

    def verdict(*paths: str) -> tuple[str, str]:
        sources = msgspec.structs.replace(NOTHING, nccl_logs=NcclLogsSection(paths=paths))
        return check(capsys, bare(tmp_path / "state", sources=sources))[1]["source nccl_logs"]

    assert verdict(f"{tmp_path}/*.log") == ("ok", "logs that can be followed: 1")
    assert verdict() == ("off", "no log is configured (sources.nccl_logs.paths)")


def test_a_taken_address_is_a_failure(tmp_path: Path, capsys: Output) -> None:
    """Exit code 1, and the address is named; the table says the same as the JSON."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config = bare(tmp_path, web=Web(listen_addresses=("127.0.0.1:0", address)))

        code, checks = check(capsys, config)
        again = run_command(config, "check-config", "--runtime")

    assert (code, again) == (1, 1)
    verdict, detail = checks["listen addresses"]
    assert (verdict, detail) == ("failed", f"cannot listen on '{address}': Address already in use")
    assert detail in capsys.readouterr().out


def test_a_locked_state_directory_is_a_failure(tmp_path: Path, capsys: Output) -> None:
    """A daemon that holds the directory and does not answer is found."""
    other = StateDirectory(tmp_path)
    other.open()
    try:
        code, checks = check(capsys, bare(tmp_path))
    finally:
        other.close()

    assert code == 1
    assert checks["state directory"][0] == "failed"
    assert "another commwatch daemon uses it" in checks["state directory"][1]


def test_beside_a_running_daemon_its_own_are_not_tried(tmp_path: Path, capsys: Output) -> None:
    """The running daemon holds directory and port: that is as it should be."""
    with answering(tmp_path, {"inventory": lambda: COMPLETE}):
        code, checks = check(capsys, bare(tmp_path))

    assert code == 0
    assert checks["state directory and listen addresses"] == ("ok", "held by the daemon that runs now")


@pytest.mark.parametrize(("found", "verdict"), [(object(), "ok"), (None, "absent")])
def test_a_probe_without_its_library_is_no_failure(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, found: object, verdict: str
) -> None:
    """The daemon runs without PyTorch, and the check says how to get it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)

    code, checks = check(capsys, bare(tmp_path, probes=Probes()))

    assert (code, checks["probe"][0]) == (0, verdict)
    if found is None:
        assert "pip install torch" in checks["probe"][1]
    assert "probe" not in check(capsys, bare(tmp_path, probes=Probes(gate="off")))[1]


class ReaderOnce(ScriptedReader):
    """A reader that a command runs once."""

    stopped = False

    async def stop(self, deadline: float = 1.5) -> None:
        self.stopped = True


@pytest.mark.parametrize(
    ("answer", "verdict", "detail"),
    [
        (collected({"": block({}), "eth1": block({}), "eth0": block({})}), "ok", "2 read: eth0, eth1"),
        (collected({"": block({})}), "ok", "nothing of its kind is here"),
        (collected({}, Absence("eth0", "unreadable", "carrier: Invalid argument")), "failed",
         "eth0: carrier: Invalid argument"),
        (SourceUnavailable("not_found", "/sys/class/net: gone"), "failed", "/sys/class/net: gone"),
        (SourceUnavailable("no_permission", "/dev/x: denied"), "failed",
         "/dev/x: denied; user watcher lacks a privilege"),
        (collected({}, Absence("eth0", "deadline", "no answer in time")), "failed", "eth0: no answer in time"),
        (collected({}, Absence("", "crashed", "it ended with exit code -9")), "failed", "it ended with exit code -9"),
    ],
)  # fmt: skip
def test_a_source_has_a_verdict_whatever_happens(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch,
    answer: Collected | SourceUnavailable, verdict: str, detail: str,
) -> None:  # fmt: skip
    """Read, absent, forbidden, hung or crashed: one line each, exit code 1 for a failure, and no process is left."""
    reader = ReaderOnce("host")
    reader.answers.append(answer)
    monkeypatch.setattr("commwatch.commands.check_config.Reader", lambda _: reader)
    monkeypatch.setenv("USER", "watcher")
    sources = msgspec.structs.replace(NOTHING, network=NetworkSection())

    code, checks = check(capsys, bare(tmp_path, sources=sources))

    assert checks["source network"][0] == verdict
    assert checks["source network"][1].startswith(detail)
    assert (code, reader.asked, reader.stopped) == (int(verdict == "failed"), ["network"], True)


def test_a_simulated_node_is_not_tried(tmp_path: Path, capsys: Output) -> None:
    """Its sources cannot be missing."""
    config = bare(tmp_path, sources=Sources(), simulation=Simulation(preset="h100x8"))

    code, checks = check(capsys, config)

    assert code == 0
    assert {checks[f"source {name}"][1] for name in ("nvml", "network", "pci")} == {"simulated (h100x8); not tried"}


def test_streams_that_are_closed_or_lack_a_sign_end_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code stays what the command says."""
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.argv", ["commwatch", "simulate", "a10x2"])
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("sys.stderr", None)
    monkeypatch.setattr("sys.stdout", narrow)
    assert main() == 0
    narrow.seek(0)
    assert "2 \\xd7 A10" in narrow.read()

    monkeypatch.setattr("sys.stdout", None)
    assert main() == 0
    for nowhere in (sys.stdin, sys.stdout, sys.stderr):
        nowhere.close()


def test_a_daemon_that_is_absent_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    """`commwatch inventory` without a daemon does not look like a complete inventory."""
    assert main(["inventory", f"--path.state={tmp_path}"]) == 4


@in_one_pass(
    "counts, words",
    [
        ({"source": "board", "learning_seconds": 600}, "board"),
        ({"source": "learned", "learning_seconds": 0}, "learned"),
        ({"source": "learned", "learning_seconds": 240}, "learned; learning, 4 min left"),
        ({"source": None, "learning_seconds": 600}, "learning, 10 min left"),
        ({"source": None, "learning_seconds": 0}, ""),
        ({}, ""),
    ],
)
def test_where_an_expectation_comes_from_is_said_in_words(counts: dict[str, Any], words: str) -> None:
    """How long is still learned matters where nothing stronger says what should be here."""
    assert origin_words(counts) == words
