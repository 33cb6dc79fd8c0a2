"""A daemon's end of the control socket, which gives the answers of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from commwatch.state.control import ControlServer, Question


@contextmanager
def answering(
    state: Path, questions: Mapping[str, Question], acts: Mapping[str, Question] | None = None
) -> Iterator[list[str]]:
    """Answer what commands ask with the state directory.

    Args:
        questions: by name of the operation, what makes the answer.
        acts: the same of what changes something.

    Yields:
        The operations that were asked for until now.
    """
    asked: list[str] = []

    def give(name: str, answer: Question) -> dict[str, Any] | msgspec.Struct:
        asked.append(name)
        return answer()

    async def act(name: str, answer: Question) -> dict[str, Any] | msgspec.Struct:
        return give(name, answer)

    state.mkdir(exist_ok=True)
    given = {name: partial(give, name, answer) for name, answer in questions.items()}
    acted = {name: partial(act, name, answer) for name, answer in (acts or {}).items()}
    server, loop = ControlServer(state, given, acts=acted), asyncio.new_event_loop()
    loop.run_until_complete(server.listen())
    thread = threading.Thread(target=loop.run_forever, name="answers of a daemon")
    thread.start()
    try:
        yield asked
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(server.stop())
        loop.close()
