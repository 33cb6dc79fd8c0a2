"""The man page and the completion of bash, from the command line's own parser."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator

from commwatch import __version__
from commwatch.__main__ import GROUPS, build_parser
from commwatch.config.exit_codes import COMMANDS, help_of
from commwatch.config.flags import settings_parser

_FILES = (
    ("/etc/commwatch/commwatch.yaml", "the configuration, every setting with its default"),
    ("/etc/default/commwatch", "flags of the service, above the configuration"),
    ("/var/lib/commwatch", "what must survive a restart, and the control socket"),
)


def page(epoch: int) -> str:
    """The man page in section 8.

    Args:
        epoch: its date, in seconds since 1970.
    """
    parser = build_parser()
    commands = dict(_commands(parser))
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    lines = [
        f'.TH COMMWATCH 8 "{date}" "commwatch {__version__}" "System administration"',
        ".SH NAME",
        "commwatch \\- watch the communication between the GPUs of a node",
        ".SH SYNOPSIS",
        ".B commwatch",
        "COMMAND [OPTION]...",
        ".SH DESCRIPTION",
        _text(parser.description or ""),
    ]
    for title, names in GROUPS.items():
        lines.append(f'.SH "COMMANDS: {title.upper()}"')
        for name in names:
            lines += [f'.SS "commwatch {name}"', _text(commands[name].description or "")]
            for action in _own(commands[name]):
                lines += [".TP", f"\\fB{_text(_spelled(action))}\\fR", _text(_help(action))]
            lines += [".PP", _text(commands[name].epilog or "")]
            if name in COMMANDS:
                lines += [".PP", _text(help_of(name))]
    lines += [
        ".SH SETTINGS",
        "Every command takes these; each is also an environment variable, such as COMMWATCH_LOG_LEVEL.",
    ]
    for action in settings_parser(listed=True)._actions:
        lines += [".TP", f"\\fB{_text(_spelled(action))}\\fR", _text(_help(action))]
    lines.append(".SH FILES")
    for path, what in _FILES:
        lines += [".TP", f"\\fI{path}\\fR", what]
    return "\n".join(lines) + "\n"


def completion() -> str:
    """A script for bash that completes commands and flags."""
    parser = build_parser()
    shared = [flag for action in settings_parser(listed=True)._actions for flag in action.option_strings]
    cases = "".join(
        f"        {name}) words='{' '.join(dict.fromkeys([*_flags(command), *shared]))}' ;;\n"
        for name, command in _commands(parser)
    )
    names = " ".join(name for name, _ in _commands(parser))
    return (
        "# Completion of commwatch's commands and flags.\n"
        "_commwatch() {\n"
        "    local words current=${COMP_WORDS[COMP_CWORD]}\n"
        '    case "${COMP_CWORD}:${COMP_WORDS[1]}" in\n'
        f"        1:*) words='{names} --help --version' ;;\n"
        "    esac\n"
        '    [ "$COMP_CWORD" -eq 1 ] || case "${COMP_WORDS[1]}" in\n'
        f"{cases}"
        "    esac\n"
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")\n'
        "}\n"
        "complete -o default -F _commwatch commwatch\n"
    )


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _own(command: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in command._actions if action.help != argparse.SUPPRESS and action.dest != "help"]


def _flags(command: argparse.ArgumentParser) -> list[str]:
    return [flag for action in command._actions for flag in action.option_strings]


def _spelled(action: argparse.Action) -> str:
    wanted = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        wanted = wanted or "{" + ",".join(map(str, action.choices)) + "}"
    return " ".join(
        filter(None, [", ".join(action.option_strings), wanted or ("" if action.option_strings else action.dest)])
    )


def _help(action: argparse.Action) -> str:
    return re.sub(r"%\((\w+)\)s", lambda match: str(getattr(action, match[1])), action.help or "").replace("%%", "%")


def _text(text: str) -> str:
    """A text in roff: hyphens are what is typed, and no line is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)
