"""Everything at once, for an hour: does the memory of a daemon stay flat, and is an honest scraper served?

A daemon starts on state files that were changed at random, and these are replaced by changed copies again and again.
Its control socket and its endpoint are flooded, and its password is guessed. An honest client scrapes once a second
with the password, in turns over a kept connection and a new one. Ends with 1 if a scrape fails, their p99 is above
50 ms, or the daemon with its readers holds 2 MiB more than it held after the first minute.

Example: python -m benchmarks.siege --seconds 3600
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.daemon import ROOT, processes
from benchmarks.shares import IN_PLACE, LIMIT_MILLISECONDS, NODE_EXPORTER, Honest, running
from benchmarks.shares_clients import Attack, attack

WARM_UP_SECONDS = 60.0
SAMPLE_SECONDS = 10.0
SHOW_SECONDS = 300.0
"""Between two lines with the memory of each process."""
REPLACE_SECONDS = 5.0
GROWTH_MIB = 2.0
PEER_SECONDS = 120.0
ON_THE_SOCKET = 40
ON_THE_ENDPOINT = (Attack("hold", 4, 150, "/healthz"), Attack("guess", 12, 4))
LEARNS_SECONDS = 20.0
"""Of a daemon that makes the state files."""


class Memory(NamedTuple):
    """MiB of a process, or of some together."""

    proportional: float
    own: float
    """Private pages alone: what other programs share with it, and when they end, does not change it."""


def memory_of(daemon: int) -> dict[str, Memory]:
    """Look at the daemon and its readers, by name; ranks of probes come and go, and do not count."""
    seen = {}
    for pid in processes(daemon):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a rank has ended
            name = "daemon" if pid == daemon else Path(f"/proc/{pid}/comm").read_text().strip()
            if pid != daemon and not name.startswith("commwatch-"):
                continue
            found = {"Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in found:
                    found[key] += int(value.split()[0])
            own = found["Private_Clean"] + found["Private_Dirty"]
            seen[name if name not in seen else f"{name} {pid}"] = Memory(found["Pss"] / 1024, own / 1024)
    return seen


def _together(seen: dict[str, Memory]) -> Memory:
    return Memory(*(sum(part) for part in zip(*seen.values(), strict=True)))


def _show(minutes: float, seen: dict[str, Memory]) -> None:
    each = ", ".join(f"{name} {one.own:.1f}" for name, one in seen.items())
    print(f"{minutes:5.1f} min: {_together(seen).own:.1f} MiB own: {each}", flush=True)


# --- state files ---


def changed(content: bytes, chance: random.Random) -> bytes:
    """A state file with lists doubled, cut or shuffled and numbers changed, or with other bytes at its end."""
    if chance.random() < 0.2:
        place = chance.randrange(len(content) + 1)
        return content[:place] + chance.randbytes(chance.randrange(4096))
    document = json.loads(content)
    for _ in range(chance.randrange(1, 5)):
        document = _changed(document, chance)
    return json.dumps(document).encode()


def _changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value:
        name = chance.choice(list(value))
        return {**value, name: _changed(value[name], chance)}
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        return chance.choice((
            [*value, *value], value[:place], chance.sample(value, len(value)),
            [*value[:place], _changed(value[place], chance), *value[place + 1 :]],
        ))  # fmt: skip
    if isinstance(value, int | float):
        return chance.choice((-value, value * 1000, value + 1, 0, 1e300))
    return chance.choice((value, None, "", "x" * 300, 7))


def _replace(kept: dict[Path, bytes], chance: random.Random) -> None:
    for path, content in kept.items():
        new = path.with_name(path.name + ".siege")
        new.write_bytes(changed(content, chance))
        new.replace(path)


# --- the control socket ---


def flood_socket(socket: str, leave: Event) -> None:
    """Ask, ask half, say nothing, say nonsense, and read no answer; in a process with the least claim to the CPU."""
    os.nice(19)
    asyncio.run(_flood_socket(socket, leave))


async def _flood_socket(socket: str, leave: Event) -> None:
    chance = random.Random(28029)  # noqa: S311 - no secret
    tasks = [asyncio.create_task(_ask_again_and_again(socket, chance)) for _ in range(ON_THE_SOCKET)]
    while not leave.is_set():
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()


async def _ask_again_and_again(socket: str, chance: random.Random) -> None:
    get = "GET /api/v1/{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    post = b"POST /api/v1/cluster-report HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
    asked = [get.format(name).encode() for name in ("snapshot", "findings", "inventory")]
    said = (*asked, asked[0][:15], b"", post + b"[" * 5000, b"x" * 100_000)
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(chance.choice((*said, chance.randbytes(chance.randrange(1, 3000)))))
                if chance.random() < 0.1:
                    await asyncio.sleep(3)  # it does not read
                await asyncio.wait_for(reader.read(), 20)
            finally:
                writer.transport.abort()
        except (OSError, asyncio.TimeoutError):
            pass  # thrown out
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def _besieged(port: int, on_the_endpoint: Sequence[Attack], socket: Path | None = None) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    leave: Event = context.Event()
    answers = context.Value("q", 0)
    crowds = [context.Process(target=attack, args=(one, port, leave, answers)) for one in on_the_endpoint]
    if socket is not None:
        crowds.append(context.Process(target=flood_socket, args=(str(socket), leave)))
    for crowd in crowds:
        crowd.start()
    try:
        yield
    finally:
        leave.set()
        for crowd in crowds:
            crowd.join(10)


def measure(port: int, seconds: float, tree: Path) -> dict[str, float | str]:
    """Hold the siege."""
    chance = random.Random(28029)  # noqa: S311 - no secret
    kept, fresh = (Honest(port, kept=kept) for kept in (True, False))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running("commwatch", port, folder, tree, passwords=True):
            time.sleep(LEARNS_SECONDS)
        files = {path: path.read_bytes() for path in folder.rglob("*.json")}
        _replace(files, chance)
        with running("commwatch", port, folder, tree, passwords=True) as (daemon, _):
            (socket,) = folder.rglob("control.sock")
            with _besieged(port, ON_THE_ENDPOINT, socket):
                samples, began = list[Memory](), time.monotonic()
                sampled = shown = WARM_UP_SECONDS
                replaced = REPLACE_SECONDS
                turn = 0
                while (passed := time.monotonic() - began) < WARM_UP_SECONDS + seconds:
                    (kept, fresh)[turn % 2].scrape()
                    turn += 1
                    if passed >= replaced:
                        _replace(files, chance)
                        replaced += REPLACE_SECONDS
                    if passed >= sampled:
                        seen = memory_of(daemon.pid)
                        samples.append(_together(seen))
                        sampled += SAMPLE_SECONDS
                        if passed >= shown:
                            _show((passed - WARM_UP_SECONDS) / 60, seen)
                            shown += SHOW_SECONDS
                    time.sleep(max(0.0, began + turn - time.monotonic()))
                _show((passed - WARM_UP_SECONDS) / 60, seen)
    # The first waits for its password to be compared, and stands apart: of a hundred it would be the percentile.
    first, *times = [*kept.milliseconds, *fresh.milliseconds]
    failed = kept.failed + fresh.failed
    cuts = statistics.quantiles(times, n=100)
    figures: dict[str, float | str] = {
        "scrapes": len(times), "failed": len(failed), "first_milliseconds": first, "p50_milliseconds": cuts[49],
        "p99_milliseconds": cuts[98],
        "longest_milliseconds": max(times), "state_files": len(files),
    }  # fmt: skip
    for name, values in (("pss", [one.proportional for one in samples]), ("own", [one.own for one in samples])):
        figures |= {f"{name}_start_mib": values[0], f"{name}_most_mib": max(values), f"{name}_end_mib": values[-1]}
    return {**figures, "why": ", ".join(sorted(set(failed)))}


def node_exporter_p99_milliseconds(port: int, tree: Path) -> float | None:
    """The 99th percentile of the same scrapes of a node_exporter under the same attacks; None if none is installed."""
    if not shutil.which(NODE_EXPORTER):
        return None
    attacks = [one._replace(path=IN_PLACE.get(one.path, one.path)) for one in ON_THE_ENDPOINT]
    kept, fresh = (Honest(port, kept=kept) for kept in (True, False))
    with (
        tempfile.TemporaryDirectory() as folder,
        running(NODE_EXPORTER, port, Path(folder), tree, passwords=True),
        _besieged(port, attacks),
    ):
        time.sleep(WARM_UP_SECONDS / 10)
        until = time.monotonic() + PEER_SECONDS
        while time.monotonic() < until:
            for client in (kept, fresh):
                client.scrape()
                time.sleep(0.5)
    return statistics.quantiles([*kept.milliseconds[1:], *fresh.milliseconds[1:]], n=100)[98]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600, help="after the first minute (default 3600)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, to compare with")
    parser.add_argument("--port", type=int, default=28970, help="free port on loopback (default 28970)")
    given = parser.parse_args()
    figures = measure(given.port, given.seconds, given.tree)
    peer = node_exporter_p99_milliseconds(given.port, given.tree)
    if peer is not None:
        figures["node_exporter_p99_milliseconds"] = peer
    for name, value in figures.items():
        print(f"{name:28} {value if isinstance(value, str) else format(value, '10.2f')}")
    grown = float(figures["own_most_mib"]) - float(figures["own_start_mib"])
    limit = max(LIMIT_MILLISECONDS, 2 * (peer or 0))
    if figures["failed"] or float(figures["p99_milliseconds"]) > limit or grown > GROWTH_MIB:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
