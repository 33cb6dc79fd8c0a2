"""``commwatch estimate`` in this process: from the words of its command line to the record that it prints."""

from __future__ import annotations

import argparse
import shlex
from functools import cache
from pathlib import Path

from commwatch.commands import estimate
from commwatch.config.settings import Config, Paths
from commwatch.diagnosis.estimate.answer import Answer, answer
from commwatch.diagnosis.estimate.model.span import Span
from commwatch.diagnosis.estimate.request import read_request

NOTHING_KNOWN = Path("/nonexistent")
"""The state directory of a node on which nothing was measured."""


def estimated(words: str, state: Path = NOTHING_KNOWN) -> Answer:
    """The command's answer to its options."""
    args = _parser().parse_args(["estimate", *shlex.split(words)])
    return answer(read_request(args, Config(paths=Paths(state=str(state))), 0.0, _no_run))


def _no_run() -> tuple[Span, str]:
    raise LookupError("no run between nodes")


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    estimate.add_parser(parser.add_subparsers(), [])
    return parser
