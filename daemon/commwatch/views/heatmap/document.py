"""Reads a saved pair matrix: what ``commwatch heatmap --json`` and ``commwatch probe --pairs --json`` print."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec

from commwatch.errors import CommwatchError, ExitCode
from commwatch.node.topology.pair_matrix import FORMAT, PairCell, PairEndpoint, PairMatrix, Suspect
from commwatch.probes.rank_plan import Backend

_LARGEST_FILE_BYTES = 2**24
"""A matrix of 64 GPUs has less than 2 MB."""

_SMALLEST, _LARGEST = 1e-12, 1e15
"""Of seconds and of bytes per second, as in a run between nodes."""
_LATEST_TIME = 4e9
"""In the year 2096; a time in milliseconds is far beyond."""


class BadMatrix(CommwatchError):
    """A file that holds no pair matrix; the message names the file, the key and what would be right."""

    exit_code = ExitCode.WRONG_USE

    def __init__(self, file: str, key: str, problem: str) -> None:
        super().__init__(f"{file}: {key}: {problem}" if key else f"{file}: {problem}")


_Wrong: TypeAlias = Callable[[str, str], BadMatrix]


def read_matrix(file: str) -> PairMatrix:
    """The pair matrix of a file; ``-`` is the standard input.

    Raises:
        BadMatrix: the file cannot be read or holds something else.
    """
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            content = sys.stdin.buffer.read(_LARGEST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                content = stream.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise BadMatrix(name, "", f"{error.strerror}") from error
    return parse_matrix(content, name)


def parse_matrix(content: bytes, name: str) -> PairMatrix:
    """The pair matrix of a text.

    Args:
        content: JSON: a matrix, or the answer of ``commwatch probe --json`` that holds one.
        name: of the file, for messages.

    Raises:
        BadMatrix: it holds no matrix.
    """
    if len(content) > _LARGEST_FILE_BYTES:
        raise BadMatrix(name, "", f"more than {_LARGEST_FILE_BYTES // 2**20} MiB; a pair matrix is smaller")
    if not content.strip():
        raise BadMatrix(name, "", "is empty; expected what `commwatch heatmap --json` prints")
    try:
        found = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:  # msgspec's own errors, text that is not UTF-8, endless nesting
        raise BadMatrix(name, "", f"is no JSON ({error}); expected what `commwatch heatmap --json` prints") from error
    place, value = _find(found, name)
    _check_shape(name, place, value)
    try:
        matrix = msgspec.convert(value, PairMatrix)
    except msgspec.ValidationError as error:
        raise BadMatrix(name, *_key_of(place, str(error))) from error
    _check_values(name, place, matrix)
    return matrix


def _find(found: Any, name: str) -> tuple[str, dict[str, Any]]:
    """The matrix in a document, with its place: the document itself, or the last one among the answers of probes."""
    if isinstance(found, dict) and isinstance(found.get("probes"), list):
        held = [
            (f"probes[{place}].pairs", one["pairs"])
            for place, one in enumerate(found["probes"])
            if isinstance(one, dict) and isinstance(one.get("pairs"), dict)
        ]
        if not held:
            raise BadMatrix(
                name, "probes", "no probe has a pair matrix; expected what `commwatch probe --pairs` prints"
            )
        place, value = held[-1]
        _check_format(name, place, value)
        return place, value
    if not isinstance(found, dict):
        raise BadMatrix(name, "", "expected an object as `commwatch heatmap --json` prints it")
    _check_format(name, "", found)
    return "", found


def _check_format(name: str, place: str, value: dict[str, Any]) -> None:
    given = value.get("format")
    if given == FORMAT:
        return
    key = _join(place, "format")
    if isinstance(given, str) and given.startswith(f"{FORMAT.partition('/')[0]}/"):
        raise BadMatrix(name, key, f"is {given!r}, of another version of commwatch; this one reads {FORMAT!r}")
    shown = "is missing" if given is None else f"is {given!r}"
    raise BadMatrix(name, key, f"{shown}; expected {FORMAT!r}, as `commwatch heatmap --json` prints it")


_LISTS: dict[str, type[msgspec.Struct]] = {"endpoints": PairEndpoint, "cells": PairCell, "suspects": Suspect}


def _check_shape(name: str, place: str, value: dict[str, Any]) -> None:
    """Convert the members of the lists one by one: the message of the whole would not name the wrong one."""
    for key, kind in _LISTS.items():
        members = value.get(key)
        if not isinstance(members, list):
            continue
        for number, one in enumerate(members):
            try:
                msgspec.convert(one, kind)
            except msgspec.ValidationError as error:
                raise BadMatrix(name, *_key_of(_join(place, f"{key}[{number}]"), str(error))) from error


def _key_of(place: str, message: str) -> tuple[str, str]:
    """Key and problem of a message of msgspec: ``Expected `int`, got `str` - at `$.latency_bytes```."""
    problem, _, path = message.partition(" - at `$")
    key = _join(place, path.removesuffix("`").removeprefix("."))
    return key, problem[:1].lower() + problem[1:].replace("`", "")


def _join(place: str, key: str) -> str:
    return ".".join(part for part in (place, key) if part)


def _check_values(name: str, place: str, matrix: PairMatrix) -> None:
    """Hold the numbers to what a matrix can hold."""

    def wrong(key: str, problem: str) -> BadMatrix:
        return BadMatrix(name, _join(place, key), problem)

    if matrix.backend not in get_args(Backend):
        raise wrong("backend", f"is {matrix.backend!r}; expected one of {', '.join(get_args(Backend))}")
    _check_positive(wrong, "taken_at", matrix.taken_at)
    if matrix.taken_at > _LATEST_TIME:
        raise wrong("taken_at", f"is {matrix.taken_at:g}; expected seconds since 1970")
    for key, size in (("latency_bytes", matrix.latency_bytes), ("bandwidth_bytes", matrix.bandwidth_bytes)):
        if not 0 <= size < 2**63:
            raise wrong(key, "is out of range; expected the bytes of a message")
    labels = [one.label for one in matrix.endpoints]
    _check_labels(wrong, labels)
    seen: set[tuple[int, int]] = set()
    for number, cell in enumerate(matrix.cells):
        at = f"cells[{number}]"
        _check_pair(wrong, f"{at}.source", cell.source, f"{at}.destination", cell.destination, len(labels))
        if (cell.source, cell.destination) in seen:
            raise wrong(at, f"is the pair {cell.source} to {cell.destination} again; expected each pair once")
        seen.add((cell.source, cell.destination))
        for key in ("latency_seconds", "bandwidth", "both_ways_bandwidth", "expected_bandwidth"):
            _check_positive(wrong, f"{at}.{key}", getattr(cell, key))
    for number, suspect in enumerate(matrix.suspects):
        for position, (source, destination) in enumerate(suspect.cells):
            at = f"suspects[{number}].cells[{position}]"
            _check_pair(wrong, f"{at}[0]", source, f"{at}[1]", destination, len(labels))
        if not 0 <= suspect.confidence <= 1:
            raise wrong(f"suspects[{number}].confidence", f"is {suspect.confidence:g}; expected a number from 0 to 1")


def _check_labels(wrong: _Wrong, labels: list[str]) -> None:
    if not labels:
        raise wrong("endpoints", "is empty; expected the ends of the pairs")
    for number, label in enumerate(labels):
        if labels.index(label) != number:
            raise wrong(f"endpoints[{number}].label", f"is {label!r}, which another end has; expected one of its own")


def _check_positive(wrong: _Wrong, key: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise wrong(key, f"is {value:g}; expected a number above 0, or null where nothing was measured")
    if value is not None and not _SMALLEST <= value <= _LARGEST:
        raise wrong(key, f"is {value:g}; expected {_SMALLEST:g} to {_LARGEST:g}")


def _check_pair(wrong: _Wrong, source_key: str, source: int, key: str, destination: int, count: int) -> None:
    for one, value in ((source_key, source), (key, destination)):
        if not 0 <= value < count:
            raise wrong(one, f"is {value}; expected the place of one of the {count} endpoints, from 0")
    if source == destination:
        raise wrong(key, f"is {destination}, as the source is; expected another end")
