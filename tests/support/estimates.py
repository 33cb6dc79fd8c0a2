"""``commwatch estimate`` in this process: from the words of its command line to the record that it prints."""

from __future__ import annotations

import argparse
import shlex
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from commwatch.commands import estimate
from commwatch.config.settings import Config, Paths
from commwatch.diagnosis.estimate.answer import answer, document
from commwatch.diagnosis.estimate.model.span import Span
from commwatch.diagnosis.estimate.request import read_request

NOTHING_KNOWN = Path("/nonexistent")
"""The state directory of a node on which nothing was measured."""


def estimated(words: str, state: Path = NOTHING_KNOWN) -> Any:
    """The record that the command prints for its options; its keys are attributes."""
    args = _parser().parse_args(["estimate", *shlex.split(words)])
    found = answer(read_request(args, Config(paths=Paths(state=str(state))), 0.0, _no_run))
    return _named(document(found))


def _named(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return SimpleNamespace(**{key: _named(one) for key, one in value.items()})
    return [_named(one) for one in value] if isinstance(value, list) else value


def _no_run() -> tuple[Span, str]:
    raise LookupError("no run between nodes")


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    estimate.add_parser(parser.add_subparsers(), [])
    return parser
