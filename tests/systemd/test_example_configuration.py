"""The example configuration against the settings that exist."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from commwatch.config.assets import asset
from commwatch.config.settings import Config, Probe, Section
from commwatch.config.yaml_file import load_config

EXAMPLE = asset("systemd/commwatch.yaml")


def settings_of(section: type[Section]) -> dict[str, Any]:
    """The names of all settings below a section, as nested mappings."""
    names: dict[str, Any] = {}
    for one in msgspec.structs.fields(section):
        is_section = isinstance(one.type, type) and issubclass(one.type, Section)
        names[one.name] = settings_of(one.type) if is_section else None
    return names


def missing(settings: dict[str, Any], written: dict[str, Any], where: str = "") -> list[str]:
    """Settings that the written file lacks."""
    lacking = [f"{where}{name}" for name in settings if name not in written]
    for name, below in settings.items():
        if below is not None and name in written:
            lacking += missing(below, written[name], f"{where}{name}.")
    return lacking


def test_the_example_loads_and_changes_nothing() -> None:
    """What the example writes is the default of each setting."""
    assert load_config(EXAMPLE) == Config()


def test_the_example_names_every_setting() -> None:
    """A setting that exists stands in the example, those of a probe included."""
    written = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))

    assert missing(settings_of(Config), written) == []
    assert missing(settings_of(Probe), written["probes"]["definitions"]["all_reduce"]) == []


def test_a_setting_that_the_example_lacks_is_found() -> None:
    """The check above sees a gap at any depth."""
    written = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    del written["sources"]["nvml"]["pcie_interval"]
    del written["thresholds"]

    assert missing(settings_of(Config), written) == ["thresholds", "sources.nvml.pcie_interval"]
