"""The text of half a page about a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.hardware.expected import Row
from benchmarks.hardware.run import Outcome

_WIDTH = 118


def summary(facts: Mapping[str, Any], sections: Mapping[str, Outcome], rows: Sequence[Row], simulated: str) -> str:
    """The sections, the values that agree with their reference, those that differ, and those without one."""
    return "\n".join(_lines(facts, sections, rows, simulated)) + "\n"


def _lines(
    facts: Mapping[str, Any], sections: Mapping[str, Outcome], rows: Sequence[Row], simulated: str
) -> Iterator[str]:
    if simulated:
        yield f"SIMULATED NODE {simulated}: nothing below was measured on a GPU."
    if "gpu_name" in facts:
        software = [f"driver {facts['driver_version']}"]
        software += [f"{name} {facts[key]}" for name, key in (("NCCL", "nccl_version"), ("torch", "torch_version"))
                     if facts.get(key)]  # fmt: skip
        yield f"{facts['gpus']} x {facts['gpu_name']}, {', '.join(software)}"
        yield ""
    for name, one in sections.items():
        yield _cut(f"{name:10} {one.seconds:6.1f} s  {one.reason or 'ran'}")
    known = [row for row in rows if row.agrees is not None]
    if not known:
        return
    wrong = [row for row in known if not row.agrees]
    yield ""
    yield f"{len(known) - len(wrong)} of {len(known)} measured values agree with their reference."
    yield from (_cut(f"  differs: {_words(row)}") for row in wrong)
    yield from _wrapped("  agree: ", (_words(row, with_reference=False) for row in known if row.agrees))
    new = [_words(row, with_reference=False) for row in rows if not row.expected and row.found is not None]
    missing = [row.words for row in rows if row.expected and row.agrees is None]
    for head, parts in (("  without a reference: ", new), ("  not measured: ", missing)):
        if parts:
            yield from _wrapped(head, parts)


def _words(row: Row, *, with_reference: bool = True) -> str:
    value, unit = (row.found / 1e9, "GB/s") if row.unit == "B/s" else (row.found, row.unit)
    found = f"{row.words}: {_number(value)}{f' {unit}' if unit else ''}"
    return f"{found}; expected {row.expected} ({row.source})" if with_reference else found


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, dict):
            return ", ".join(f"{key} ({count} times)" for key, count in value.items())
        return ", ".join(value) or "none" if isinstance(value, list) else str(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cut(line: str) -> str:
    line = " ".join(line.splitlines())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _wrapped(head: str, parts: Iterable[str]) -> Iterator[str]:
    line = head
    for part in parts:
        if len(line) + len(part) > _WIDTH and line.strip():
            yield line.rstrip()
            line = "    "
        line += f"{part}; "
    yield line.rstrip("; ")
