"""``commwatch estimate`` in this process: from the words of its command line to the document that it prints."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from commwatch.__main__ import build_parser
from commwatch.config.settings import Config, Paths

NOTHING_KNOWN = Path("/nonexistent")
"""The state directory of a node on which nothing was measured."""
_parser = cache(lambda: build_parser(("estimate",)))


class Named(SimpleNamespace):
    """An object of the document."""

    def holds(self, value: float) -> bool:
        """Whether a number lies within a range."""
        return bool(self.low <= value <= self.high)


def estimated(words: str, state: Path = NOTHING_KNOWN) -> Any:
    """The document that the command prints for its options; its keys are attributes."""
    args, output = _parser().parse_args(["estimate", *shlex.split(words), "--json"]), io.StringIO()
    with contextlib.redirect_stdout(output):
        args.run(args, Config(paths=Paths(state=str(state))))
    return json.loads(output.getvalue(), object_hook=lambda fields: Named(**fields))
