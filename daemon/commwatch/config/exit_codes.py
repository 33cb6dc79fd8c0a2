"""Meaning of each command's exit codes: its help, and the table in docs/reference/exit-codes.md."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.errors import ExitCode

OK, FOUND, WRONG_USE, NOT_KNOWN, NO_DAEMON, RUN_BROKEN = ExitCode

Meanings = Mapping[ExitCode, str]

GENERAL: Meanings = {
    OK: "nothing is wrong",
    FOUND: "something is wrong, slow or missing, or what was asked for failed",
    WRONG_USE: "wrong use of the command line, or a configuration that cannot be used; of `healthcheck` also Unknown",
    NOT_KNOWN: "nothing could be measured or judged",
    NO_DAEMON: "no daemon runs with this state directory",
    RUN_BROKEN: "a run over several nodes could not begin or did not last",
}
"""Meanings that hold for all commands."""

WRONG = "wrong use, or a wrong configuration"
"""Meaning of 2 for commands that define no other."""

_NO_DAEMON: Meanings = {NO_DAEMON: GENERAL[NO_DAEMON]}
_BROKEN = "the run is broken: bad input, no run key or another one than member 0's, the store was lost, a signal"
_UNREACHED = "a member that could not reach the store prints why"
_BAD_SITE: Meanings = {
    FOUND: "with --check: a file is not current",
    WRONG_USE: "wrong use, or the site's file or thresholds are wrong",
}

COMMANDS: Mapping[str, Meanings] = {
    "top": {
        OK: "quit, or printed",
        FOUND: "the daemon returns an error or refuses access",
        WRONG_USE: "wrong use: an option, a file, the address",
        NO_DAEMON: "with --once or --json: no daemon answers",
    },
    "score": {
        OK: "excellent or good",
        FOUND: "needs work, or the daemon does not answer",
        NOT_KNOWN: "not measured; without a daemon: no GPU to measure",
    },
    "topology": {OK: "printed", FOUND: "neither sysfs nor the driver answers"},
    "heatmap": {
        OK: "drawn",
        FOUND: "no matrix yet, a failed one, or two that cannot be compared",
        WRONG_USE: "wrong use, or a file that cannot be read or written",
        NOT_KNOWN: "--fresh was skipped or gave way",
        NO_DAEMON: "no matrix is known, and no daemon runs",
    },
    "inventory": {
        OK: "all expected parts are here",
        FOUND: "something is missing, or the daemon does not answer",
        NOT_KNOWN: "an expected part was not read",
        **_NO_DAEMON,
    },
    "diagnose": {
        OK: "OK; --log: the job works or ended well; --settings: at most notes; --flight-recorder: no rank waits; "
        "--compare: nothing got worse",
        FOUND: "Warning or Critical; --log: trouble, or the job is slow; --settings: a setting harms, may harm or does "
        "nothing; --flight-recorder: ranks wait; --compare: something got worse",
        WRONG_USE: "wrong use, or a file or process that cannot be read or written",
        NOT_KNOWN: "Unknown, or the daemon does not answer; --log: no line shows which; --flight-recorder: no dump can "
        "be used",
        **_NO_DAEMON,
    },
    "flight-recorder convert": {OK: "written", WRONG_USE: "wrong use, or a file that cannot be read or written"},
    "probe": {
        OK: "good; with --with: measured, whatever the gain",
        FOUND: "failed, low, short or slow",
        NOT_KNOWN: "skipped or gave way; with --with: also on nodes that probe without NCCL",
    },
    "cluster check": {
        OK: "nothing is wrong",
        FOUND: f"something is named, or a member did not come or left; {_UNREACHED}",
        NOT_KNOWN: "fewer than two nodes came",
        RUN_BROKEN: _BROKEN,
    },
    "cluster probe": {
        OK: "no part is at fault",
        FOUND: f"something is named or left open; {_UNREACHED}",
        WRONG_USE: "wrong use, or a file that cannot be written",
        NOT_KNOWN: "fewer than two nodes were measured",
        RUN_BROKEN: _BROKEN,
    },
    "cluster scan": {
        OK: "nothing is wrong",
        FOUND: f"check, probe or the diagnosis of a node found something; {_UNREACHED}",
        WRONG_USE: "wrong use, or a file that cannot be written",
        NOT_KNOWN: "fewer than two nodes were measured",
        RUN_BROKEN: _BROKEN,
    },
    "cluster plan": {
        OK: "printed",
        NOT_KNOWN: "fewer than two nodes",
        RUN_BROKEN: "the members or groups cannot be used",
    },
    "cluster locate": {
        OK: "no part is at fault",
        FOUND: "something is named or left open",
        NOT_KNOWN: "fewer than two nodes",
        RUN_BROKEN: "the run or the groups cannot be used; one line says where and why",
    },
    "estimate": {OK: "estimated"},
    "marks learn": {
        OK: "written",
        WRONG_USE: "wrong use, or a file that cannot be read or written, or is there already",
        NOT_KNOWN: "no good node to learn from",
    },
    "run": {
        OK: "stopped",
        WRONG_USE: "wrong use, or the configuration, the state directory or a listen address cannot be used",
    },
    "check-config": {OK: "all is well", FOUND: "with --runtime: something cannot be reached"},
    "healthcheck": {
        OK: "OK; with --slurm: no fresh fault of the drain list, or Unknown",
        FOUND: "Warning or Critical; with --slurm: a fresh fault of the drain list; with --fail-closed: also Unknown",
        WRONG_USE: "Unknown, wrong use included",
    },
    "pause": {
        OK: "probes may start again",
        FOUND: "a process still holds a device, or the daemon did not take the pause",
        WRONG_USE: "wrong use, or the pause cannot be written",
        NO_DAEMON: "no daemon runs with this state directory; the pause is written for one that starts",
    },
    "resume": {
        OK: "resumed, or nothing was paused",
        FOUND: "the daemon does not answer",
        WRONG_USE: "wrong use, or the pause cannot be removed",
        **_NO_DAEMON,
    },
    "yield": {
        OK: "no probe holds a GPU",
        FOUND: "one still does after --wait",
        WRONG_USE: "wrong use, or the hold cannot be written",
    },
    "rules": {OK: "written, printed or current", **_BAD_SITE},
    "dashboards": {OK: "written or current", **_BAD_SITE},
    "assets": {OK: "printed or copied", WRONG_USE: "wrong use, or the folder is there already"},
    "simulate": {OK: "printed", WRONG_USE: "wrong use, or there is no such node, or its file is wrong"},
    "record": {
        OK: "recorded, or listed",
        FOUND: "recorded, but a reader had not come back at the end",
        WRONG_USE: "wrong use, a file that exists or cannot be written, or with --list no usable recording",
    },
    "drill": {
        OK: "all passed",
        FOUND: "a drill did not pass, was not over within --within, or an alert fired beside them",
        WRONG_USE: "wrong use: an unknown drill or option, your own Alertmanager without --i-will-page",
        NOT_KNOWN: "the drill could not run: a program is missing or did not start, or a server does not answer",
    },
}  # fmt: skip
"""Meanings of each command's codes, by its words after ``commwatch``; ``meanings_of`` adds the common ones."""

SIGNALLED = "128 + N: ended by signal N, as 130 by Ctrl-C and 143 by SIGTERM."
UNWRITTEN = "Any command exits with 1 where its output cannot be written."


def meanings_of(command: str) -> Meanings:
    """The codes of a command in their order, with what they mean.

    Args:
        command: its words after ``commwatch``, such as ``cluster check``.
    """
    return dict(sorted({WRONG_USE: WRONG, **COMMANDS[command]}.items()))


def help_of(command: str) -> str:
    codes = "; ".join(f"{code}: {meaning}" for code, meaning in meanings_of(command).items())
    return f"Exit code {codes}."
