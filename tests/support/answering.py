"""A daemon's end of the control socket, which gives the answers of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from commwatch.state.control import ControlServer, Handler

Answer: TypeAlias = Callable[[], dict[str, Any] | msgspec.Struct]


@contextmanager
def answering(
    state: Path, questions: Mapping[str, Answer], acts: Mapping[str, Answer] | None = None
) -> Iterator[list[str]]:
    """Answer what commands ask with the state directory.

    Args:
        questions: by name of the operation, what makes the answer.
        acts: the same of what changes something.

    Yields:
        The operations that were asked for until now.
    """
    asked: list[str] = []

    def handler(name: str, answer: Answer) -> Handler:
        async def handle() -> dict[str, Any] | msgspec.Struct:
            asked.append(name)
            return answer()

        return handle

    state.mkdir(exist_ok=True)
    of_all = [{name: handler(name, answer) for name, answer in some.items()} for some in (questions, acts or {})]
    server, loop = ControlServer(state, of_all[0], acts=of_all[1]), asyncio.new_event_loop()
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
