"""The flags and environment variables that set a setting of the configuration, for all commands alike."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from commwatch.config.settings import Config
from commwatch.config.yaml_file import Override, Steps, load_config

DEFAULT_CONFIG_FILE = Path("/etc/commwatch/commwatch.yaml")

_FLAGS: tuple[tuple[str, Steps, str], ...] = (
    ("--web.listen-address", ("web", "listen_addresses"), "HOST:PORT to serve on, also several times; empty: none"),
    ("--web.telemetry-path", ("web", "telemetry_path"), "path of the metrics"),
    ("--web.config.file", ("web", "config_file"), "TLS, users and limits, in the format of exporter-toolkit"),
    ("--web.systemd-socket", ("web", "systemd_socket"), "listen on the sockets that systemd hands over"),
    ("--textfile.path", ("textfile", "path"), "write the metrics into FILE.prom too, for node_exporter"),
    ("--path.sysfs", ("paths", "sysfs"), "where sysfs is mounted"),
    ("--path.procfs", ("paths", "procfs"), "where procfs is mounted"),
    ("--path.state", ("paths", "state"), "directory for what must survive a restart"),
    ("--log.level", ("log", "level"), "debug, info, warning or error"),
    ("--log.format", ("log", "format"), "auto, json or console"),
    (
        "--simulate",
        ("simulation", "preset"),
        "a simulated node in place of this one: h100x8 (commwatch simulate --list names them), a file of your own or "
        "a recording; to ask its daemon, with the same --path.state",
    ),
    ("--simulate.faults", ("simulation", "faults"), "file of faults for the simulated node"),
    ("--simulate.playback", ("simulation", "playback"), "after a recording: hold (default), loop, or once, to end"),
)
_LISTS = {"--web.listen-address"}
_SWITCHES = {"--web.systemd-socket"}
_WANTED = {
    "--web.listen-address": "ADDRESS",
    "--web.telemetry-path": "PATH",
    "--web.config.file": "FILE",
    "--textfile.path": "FILE",
    "--path.sysfs": "DIRECTORY",
    "--path.procfs": "DIRECTORY",
    "--path.state": "DIRECTORY",
    "--log.level": "LEVEL",
    "--log.format": "FORMAT",
    "--simulate": "NODE",
    "--simulate.faults": "FILE",
    "--simulate.playback": "MODE",
}
"""Name of a flag's value in the help."""


def _destination(flag: str) -> str:
    return flag.removeprefix("--").replace(".", "_").replace("-", "_")


def environment_name(flag: str) -> str:
    """The environment variable of a flag: ``COMMWATCH_WEB_LISTEN_ADDRESS``."""
    return f"COMMWATCH_{_destination(flag).upper()}"


def settings_parser(*, listed: bool) -> argparse.ArgumentParser:
    """A parent parser with the flags that set a setting, for the commands that read one.

    Args:
        listed: the help has a line for each; else one for all.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group(
        "settings",
        "each flag also as environment variable, such as COMMWATCH_LOG_LEVEL; flag over environment over file"
        if listed
        else "--simulate NODE, --path.state DIRECTORY, --config.file FILE and the others of commwatch run --help",
    )
    group.add_argument(
        "--config.file", dest="config_file", metavar="FILE", type=Path,
        help=f"configuration (default: {DEFAULT_CONFIG_FILE}, if it is there)",
    )  # fmt: skip
    for flag, _, text in _FLAGS:
        if flag in _SWITCHES:
            group.add_argument(flag, dest=_destination(flag), help=text, action="store_const", const=True)
            continue
        group.add_argument(
            flag,
            dest=_destination(flag),
            metavar=_WANTED[flag],
            help=text,
            action="append" if flag in _LISTS else "store",
        )
    if not listed:
        for action in group._group_actions:
            action.help = argparse.SUPPRESS
    return parser


def _from_environment(flag: str, value: str) -> object:
    if flag in _LISTS:
        return [part for one in value.split(",") if (part := one.strip())]
    if flag in _SWITCHES:
        return {"true": True, "1": True, "false": False, "0": False, "": False}.get(value.lower(), value)
    return value


def _overrides(parsed: argparse.Namespace, environment: Mapping[str, str]) -> list[Override]:
    found = []
    for flag, steps, _ in _FLAGS:
        name = environment_name(flag)
        if name in environment:
            found.append(Override(steps, _from_environment(flag, environment[name]), name))
    for flag, steps, _ in _FLAGS:
        value = getattr(parsed, _destination(flag))
        if value is not None:
            found.append(Override(steps, [one for one in value if one] if flag in _LISTS else value, flag))
    return found


def config_path(parsed: argparse.Namespace, environment: Mapping[str, str]) -> Path | None:
    """The configuration file that is meant; None where none is named and the default one is not there."""
    if parsed.config_file is not None:
        return Path(parsed.config_file)
    if named := environment.get("COMMWATCH_CONFIG_FILE"):
        return Path(named)
    return DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.exists() else None


def config_from(parsed: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration that flags, environment and file give together.

    Raises:
        ConfigError: see ``load_config``.
    """
    return load_config(config_path(parsed, environment), _overrides(parsed, environment))
