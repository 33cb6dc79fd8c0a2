"""promtool, the shipped alerts, and the cases of an alert beside only those rules that it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from commwatch.generate.alert_cases import document, needed_groups, shipped_groups, write

__all__ = (
    "alerts_of", "document", "duration_ms", "judge_cases", "left_open", "needed_groups", "promtool", "read_yaml",
    "shipped_groups", "write_cases",
)  # fmt: skip

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RANGE = re.compile(r"\[((?:\d+(?:ms|[smhdw]))+)(:[^\]]*)?\]")


def duration_ms(text: str) -> int:
    """Milliseconds of a duration as Prometheus writes it: ``1h30m``."""
    return sum(int(number) * _UNITS_MS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdw])", text))


def left_open(text: str) -> str:
    """An expression whose ranges leave out a sample exactly at their start, as those of Prometheus 3 do.

    Time stamps are whole milliseconds: (t - 2m, t] of Prometheus 3 is [t - 1m59.999s, t] of Prometheus 2.
    """
    return _RANGE.sub(lambda match: f"[{duration_ms(match[1]) - 1}ms{match[2] or ''}]", text)


def read_yaml(file: Path) -> Any:
    """What a file of rules or cases holds, by the parser in C: the one in Python takes ten times as long."""
    return yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)


def alerts_of(groups: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The alerts among the rules of some groups, by name."""
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; what it says stands in ``stdout``."""
    # Go's collector takes a quarter of the time where it runs less often.
    environment = {**os.environ, "GOGC": "400"}
    return subprocess.run(
        ["promtool", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip


def _with_left_open_ranges(rule: dict[str, Any]) -> dict[str, Any]:
    changed = {**rule, "expr": left_open(rule["expr"])}
    if "annotations" in rule:
        changed["annotations"] = {key: left_open(text) for key, text in rule["annotations"].items()}
    return changed


def write_cases(cases: Path, folder: Path, *, left_open_ranges: bool = False) -> Path:
    """Write a file of cases as promtool takes it, beside only the rules of the alerts that it names.

    Returns:
        The file for ``promtool test rules``.
    """
    file = write(cases, folder)
    if left_open_ranges:
        rules = folder / "rules" / file.name
        groups = json.loads(rules.read_text(encoding="utf-8"))["groups"]
        groups = [{**group, "rules": [_with_left_open_ranges(rule) for rule in group["rules"]]} for group in groups]
        rules.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    return file


def judge_cases(files: Sequence[Path], folder: Path, *, left_open_ranges: bool = False) -> dict[str, str]:
    """What promtool says of files of cases, in one run: to start it for each file takes longer.

    Args:
        files: of cases.
        folder: for the cases beside only those rules that they need.
        left_open_ranges: as those of Prometheus 3 are; else as those of Prometheus 2.

    Returns:
        By the stem of the file; empty where all is well.
    """
    cases = [write_cases(file, folder, left_open_ranges=left_open_ranges) for file in files]
    judged = promtool("test", "rules", *cases)
    parts = [part.partition("\n") for part in judged.stdout.split("Unit Testing:  ")[1:]]
    return {Path(file.strip()).stem: "" if told.strip() == "SUCCESS" else told.strip() for file, _, told in parts}
