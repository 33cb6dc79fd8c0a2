"""Flags and environment variables: which one wins, what lists look like, and where a mistake is said to be."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from commwatch.config import flags as settings_arguments
from commwatch.config.flags import config_from, config_path, environment_name, settings_parser
from commwatch.config.settings import Config
from commwatch.errors import ConfigError
from support.passes import in_one_pass

NOTHING: Mapping[str, str] = {}

SETTINGS = [
    ("--web.telemetry-path", "/m", ("web", "telemetry_path")),
    ("--path.sysfs", "/host/sys", ("paths", "sysfs")),
    ("--path.procfs", "/host/proc", ("paths", "procfs")),
    ("--path.state", "/data", ("paths", "state")),
    ("--log.level", "debug", ("log", "level")),
    ("--log.format", "console", ("log", "format")),
    ("--simulate", "a10x2", ("simulation", "preset")),
    ("--simulate.faults", "/f.yaml", ("simulation", "faults")),
]


@pytest.fixture(autouse=True)
def no_default_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The machine's own configuration plays no part; returns where the default one would be."""
    file = tmp_path / "etc" / "commwatch.yaml"
    monkeypatch.setattr(settings_arguments, "DEFAULT_CONFIG_FILE", file)
    return file


def parsed(*arguments: str) -> argparse.Namespace:
    return settings_parser(listed=True).parse_args(arguments)


def setting(config: Config, steps: tuple[str, str]) -> object:
    return getattr(getattr(config, steps[0]), steps[1])


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


@in_one_pass("flag, value, steps", SETTINGS)
def test_each_flag_and_its_variable_set_the_same_setting(flag: str, value: str, steps: tuple[str, str]) -> None:
    """Every flag has its variable, and both reach the setting; the default is another value."""
    # A file of faults is refused without a node to strike.
    others = {"COMMWATCH_SIMULATE": "h100x8"} if flag == "--simulate.faults" else {}
    assert setting(config_from(parsed(), others), steps) != value
    assert setting(config_from(parsed(flag, value), others), steps) == value
    assert setting(config_from(parsed(), {environment_name(flag): value, **others}), steps) == value


def test_variables_are_named_after_their_flags() -> None:
    """Upper case, underscores, and the name of the program in front."""
    assert environment_name("--web.listen-address") == "COMMWATCH_WEB_LISTEN_ADDRESS"
    assert environment_name("--simulate") == "COMMWATCH_SIMULATE"


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """Each stage is seen once the one above it is taken away."""
    file = write(tmp_path / "commwatch.yaml", "log: {level: warning}\npaths: {sysfs: /file}\n")
    environment = {"COMMWATCH_LOG_LEVEL": "error", "COMMWATCH_PATH_PROCFS": "/environment"}
    named = ("--config.file", str(file))

    assert config_from(parsed(*named, "--log.level", "debug"), environment).log.level == "debug"
    assert config_from(parsed(*named), environment).log.level == "error"
    assert config_from(parsed(*named), NOTHING).log.level == "warning"
    assert config_from(parsed(), NOTHING).log.level == "info"
    mixed = config_from(parsed(*named, "--log.level", "debug"), environment)
    assert (mixed.paths.sysfs, mixed.paths.procfs, mixed.paths.state) == ("/file", "/environment", "")


def test_listen_addresses_are_a_list(tmp_path: Path) -> None:
    """A flag may be given several times, a variable separates with commas; each replaces the list below it."""
    file = write(tmp_path / "commwatch.yaml", "web: {listen_addresses: [':1', ':2', ':3']}\n")
    named = ("--config.file", str(file))
    variable = {"COMMWATCH_WEB_LISTEN_ADDRESS": "127.0.0.1:4,[::1]:5"}
    flags = ("--web.listen-address", ":6", "--web.listen-address", ":7")

    assert config_from(parsed(*named), NOTHING).web.listen_addresses == (":1", ":2", ":3")
    assert config_from(parsed(*named), variable).web.listen_addresses == ("127.0.0.1:4", "[::1]:5")
    assert config_from(parsed(*named, *flags), variable).web.listen_addresses == (":6", ":7")


def test_an_empty_listen_address_opens_no_port(tmp_path: Path) -> None:
    """As a flag, as a variable, and as an empty list in the file."""
    file = write(tmp_path / "commwatch.yaml", "web: {listen_addresses: []}\n")

    assert config_from(parsed("--web.listen-address", ""), NOTHING).web.listen_addresses == ()
    assert config_from(parsed(), {"COMMWATCH_WEB_LISTEN_ADDRESS": ""}).web.listen_addresses == ()
    assert config_from(parsed("--config.file", str(file)), NOTHING).web.listen_addresses == ()


def test_the_file_is_the_one_that_is_named(tmp_path: Path, no_default_file: Path) -> None:
    """By the flag, else by the variable, else the default one where it is there, else none."""
    variable = {"COMMWATCH_CONFIG_FILE": str(tmp_path / "b.yaml")}

    assert config_path(parsed("--config.file", "a.yaml"), variable) == Path("a.yaml")
    assert config_path(parsed(), variable) == tmp_path / "b.yaml"
    assert config_path(parsed(), NOTHING) is None
    write(no_default_file, "log: {level: error}\n")
    assert config_path(parsed(), {"COMMWATCH_CONFIG_FILE": ""}) == no_default_file
    assert config_from(parsed(), NOTHING).log.level == "error"


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """A misspelt path is an error, not the defaults."""
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        config_from(parsed("--config.file", str(tmp_path / "none.yaml")), NOTHING)


def test_a_mistake_is_said_to_be_where_it_was_made() -> None:
    """The flag, else the variable, is named; a wrong variable beneath a good flag does no harm."""
    variable = {"COMMWATCH_LOG_LEVEL": "loud"}

    with pytest.raises(ConfigError, match=r"^COMMWATCH_LOG_LEVEL: log\.level: 'loud' is not possible"):
        config_from(parsed(), variable)
    with pytest.raises(ConfigError, match=r"^--log\.level: log\.level: 'quiet' is not possible"):
        config_from(parsed("--log.level", "quiet"), NOTHING)
    assert config_from(parsed("--log.level", "debug"), variable).log.level == "debug"


def test_variables_of_others_are_ignored() -> None:
    """Only whole names count."""
    strangers = {"COMMWATCH_LOG": "x", "LOG_LEVEL": "debug", "COMMWATCH_UNKNOWN": "1"}

    assert config_from(parsed(), strangers) == Config()
