"""Saved pair matrices are read back; a file that holds none is refused, with the key and what would be right."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.errors import CommwatchError
from commwatch.node.topology.pair_matrix import PairMatrix
from heatmap.command import NOWHERE, run
from heatmap.matrices import matrix, slow_gpu
from support.passes import in_one_pass


def document(**changes: Any) -> dict[str, Any]:
    """A matrix of two GPUs as JSON has it, with some keys replaced."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(matrix(2)))
    return found | changes


def read(content: bytes, *arguments: str) -> str:
    """The output of the command for a file."""
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as out:
        file = Path(folder, "pairs.json")
        file.write_bytes(content)
        run(NOWHERE, "--from", str(file), *arguments)
        return out.getvalue()


def parsed(content: bytes) -> PairMatrix:
    """The matrix that a file holds."""
    return msgspec.json.decode(read(content, "--json"), type=PairMatrix)


def refused(value: Any) -> str:
    return refused_bytes(msgspec.json.encode(value))


def refused_bytes(content: bytes) -> str:
    """The error in one line, with the file's name for its path."""
    with pytest.raises(CommwatchError) as caught:
        read(content)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return re.sub(r"^\S*/", "", str(caught.value))


def test_the_answer_of_a_probe_holds_a_matrix() -> None:
    """The last one among its probes; the others have none."""
    pairs = msgspec.to_builtins(matrix(2))
    answer = {
        "schema_version": 1,
        "probes": [{"probe": "all_reduce", "pairs": None}, {"probe": "pairs", "pairs": pairs}],
    }

    assert parsed(msgspec.json.encode(answer)) == matrix(2)


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``-``, and is called by its name in errors."""

    class Input:
        buffer = io.BytesIO(msgspec.json.encode(matrix(2)))

    monkeypatch.setattr(sys, "stdin", Input)
    assert run(NOWHERE, "--from", "-", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=PairMatrix) == matrix(2)
    with pytest.raises(CommwatchError, match="standard input: is empty"):
        run(NOWHERE, "--from", "-")


def test_an_answer_of_another_version_is_named() -> None:
    """The matrix in what ``commwatch probe --json`` printed is held to the same format."""
    answer = {"schema_version": 1, "probes": [{"pairs": document(format="commwatch-pairs/2")}]}

    assert refused(answer).startswith("pairs.json: probes[0].pairs.format: is 'commwatch-pairs/2', of another version")


@in_one_pass(
    "changes, expected",
    [
        (
            {"format": "commwatch-pairs/9"},
            "pairs.json: format: is 'commwatch-pairs/9', of another version of commwatch; this one reads "
            "'commwatch-pairs/1'",
        ),
        ({"format": "pairs/1"}, "pairs.json: format: is 'pairs/1'; expected 'commwatch-pairs/1'"),
        ({"backend": "mpi"}, "pairs.json: backend: is 'mpi'; expected one of nccl, gloo, simulated"),
        ({"latency_bytes": "8"}, "pairs.json: latency_bytes: expected int, got str"),
        ({"taken_at": 1e12}, "pairs.json: taken_at: is 1e+12; expected seconds since 1970"),
        ({"taken_at": -1.0}, "pairs.json: taken_at: is -1; expected a number above 0"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named_with_what_would_be_right(changes: dict[str, Any], expected: str) -> None:
    """At the top level."""
    assert refused(document(**changes)).startswith(expected)


@in_one_pass(
    "key, value, expected",
    [
        ("source", 7, "cells[1].source: is 7; expected the place of one of the 2 endpoints, from 0"),
        ("destination", 1, "cells[1].destination: is 1, as the source is; expected another end"),
        ("bandwidth", 0.0, "cells[1].bandwidth: is 0; expected a number above 0, or null where nothing was measured"),
        ("latency_seconds", "9us", "cells[1].latency_seconds: expected float | null, got str"),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_named_by_its_place(key: str, value: Any, expected: str) -> None:
    """The second of the two cells, from 0."""
    found = document()
    found["cells"][1][key] = value

    assert refused(found) == f"pairs.json: {expected}"


def test_a_pair_that_stands_there_twice_is_refused() -> None:
    """Which of the two is right cannot be known."""
    found = document()
    found["cells"].append(found["cells"][0])

    assert refused(found) == "pairs.json: cells[2]: is the pair 0 to 1 again; expected each pair once"


def test_a_label_that_two_ends_have_is_refused() -> None:
    """Rows and columns could not be told apart."""
    found = document()
    found["endpoints"][1]["label"] = "0"

    assert "endpoints[1].label: is '0', which another end has" in refused(found)


def test_a_suspect_of_cells_that_are_not_there_is_refused() -> None:
    """With the place of the cell."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(slow_gpu()))
    found["suspects"][0]["cells"][2] = [3, 99]

    assert refused(found).startswith("pairs.json: suspects[0].cells[2][1]: is 99; expected the place")


@in_one_pass("value", [[], 3, None, {}, {"probes": []}, {"probes": [{"pairs": None}]}, {"probes": {}}])
def test_other_json_is_refused(value: Any) -> None:
    """With what is expected in its place."""
    assert "expected" in refused(value)


def test_a_matrix_within_an_answer_is_named_from_the_top() -> None:
    """So that the key can be found in the file."""
    pairs = document(backend="mpi")

    assert refused({"probes": [{}, {"pairs": pairs}]}).startswith("pairs.json: probes[1].pairs.backend: is 'mpi'")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_other_text_is_refused_in_one_line(content: bytes) -> None:
    """Never with another error."""
    assert refused_bytes(content)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(document())), _JSON)
def test_any_value_of_a_key_is_taken_or_refused(key: str, value: Any) -> None:
    """A damaged document never ends in another error."""
    try:
        found = read(msgspec.json.encode(document(**{key: value})))
    except CommwatchError:
        return
    assert " UTC" in " ".join(found.split())
