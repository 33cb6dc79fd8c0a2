"""Measures how Flight Recorder dumps are read: time, memory on hostile files, damaged bytes, and real mismatches.

Examples:
    python -m benchmarks.flight_recorder --json                 # a dump of 2,000 calls; files of 64 MiB; seconds
    python -m benchmarks.flight_recorder --flips                # every bit of twelve real dumps; ten minutes
    python -m benchmarks.flight_recorder --mismatches 10        # jobs of four gloo ranks; half a minute each
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from commwatch.jobs.flight_recorder.dump import MOST_BYTES, parse
from commwatch.jobs.flight_recorder.files import find_files
from commwatch.jobs.flight_recorder.pickle_walk import NoDump
from commwatch.jobs.flight_recorder.reading import read_dumps
from commwatch.jobs.flight_recorder.recording import Recording, condense
from commwatch.jobs.flight_recorder.verdict import RankDump, judge

GLOO = Path(__file__).parents[1] / "tests/analysis/flight_recorder/gloo"
AT_FAULT = {"missing": {3}, "mismatch": {2}, "deadlock": {0, 1}}
TAKEN = 1.9e9
HEAD = b"\x80\x02"
_JSON = b'{"process_group":["",""],"profiling_name":"a:b","collective_seq_id":1,"record_id":1,"time_created_ns":1},'
_SIZE = MOST_BYTES - 64


def _many(part: bytes) -> bytes:
    return part * (_SIZE // len(part))


LARGE: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: bytes(_SIZE),
    "random": lambda: os.urandom(_SIZE),
    "open lists": lambda: HEAD + b"]" * _SIZE,
    "filled lists": lambda: HEAD + b"]" + _many(b"(" + b"]" * 90_000 + b"e"),
    "dictionaries": lambda: HEAD + b"]" + _many(b"(" + b"}" * 90_000 + b"e"),
    "constants": lambda: HEAD + b"]" + _many(b"(" + b"N" * 90_000 + b"e"),
    "numbers": lambda: HEAD + b"]" + _many(b"(" + b"J\x00\x01\x02\x03" * 90_000 + b"e"),
    "texts": lambda: HEAD + b"]" + _many(b"(" + (b"X\x00\x00\x01\x00" + b"x" * 65536) * 16 + b"e"),
    "short texts": lambda: HEAD + b"]" + _many(b"(" + b"X\x01\x00\x00\x00x" * 90_000 + b"e"),
    "one text": lambda: HEAD + b"X\xf0\xff\xff\x03" + b"x" * (_SIZE - 16),
    "JSON lists": lambda: b"[" * _SIZE,
    "JSON calls": lambda: b'{"version":"2.10","entries":[' + _many(_JSON),
    "JSON numbers": lambda: b'{"version":"2.10","entries":[' + _many(b"1,"),
    "JSON text": lambda: b'{"version":"' + b"x" * (_SIZE - 16) + b'"}',
    "JSON unknown keys": lambda: b'{"version":"2.10",' + b'"x":[' + _many(b"[],") + b"]}",
}
"""Files of 64 MiB."""


def calls(number: int) -> bytes:
    """A dump of one real gloo process with that number of calls."""
    program = (
        "import os, sys, torch, torch.distributed as dist\n"
        "from torch._C._distributed_c10d import _dump_fr_trace\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, init_method='file://' + sys.argv[2])\n"
        "one = torch.ones(10)\n"
        "for _ in range(int(sys.argv[1]) + 500): dist.all_reduce(one)\n"
        "os.write(1, _dump_fr_trace())\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TORCH_FR_BUFFER_SIZE": str(number), "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-W", "ignore", "-c", program, str(number), f"{folder}/store"]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout


def reading(number: int, runs: int) -> dict[str, float]:
    """CPU seconds from the bytes of a dump to what it says."""
    data = calls(number)
    used = []
    for _ in range(runs):
        begin = time.process_time()
        recording = condense(parse(data))
        used.append(time.process_time() - begin)
    assert recording.calls == number
    return {"calls": number, "bytes": len(data), "cpu_seconds": statistics.median(used)}


def large_files() -> dict[str, dict[str, float | str]]:
    """Wall time of each file of 64 MiB, its answer, and the most memory that any child has had so far, MiB."""
    found: dict[str, dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank_0"
        for name, make in LARGE.items():
            path.write_bytes(make())
            begin = time.monotonic()
            dumps, notes = read_dumps(find_files([str(path)])[0])
            found[name] = {
                "seconds": round(time.monotonic() - begin, 2),
                "most_memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
                "answer": "a dump" if dumps else notes[0].partition("left out: ")[2],
            }
    return found


def flips(ending: str = "") -> dict[str, dict[str, int]]:
    """What becomes of the verdict when one bit, or one byte, of one dump is wrong; ``wrong`` must not be there."""
    found = {}
    for case, right in AT_FAULT.items():
        raw = [(GLOO / case / f"rank_{rank}{ending}").read_bytes() for rank in range(4)]
        good = [condense(parse(one)) for one in raw]
        counts = Counter[str]()
        for rank, data in enumerate(raw):
            for place in range(len(data)):
                for bits in (*(1 << bit for bit in range(8)), 255):
                    damaged = bytearray(data)
                    damaged[place] ^= bits
                    counts[_outcome(bytes(damaged), rank, good, right)] += 1
        found[case] = dict(counts)
    return found


def _outcome(damaged: bytes, rank: int, good: Sequence[Recording], right: set[int]) -> str:
    dumps = [RankDump(other, "", TAKEN, one) for other, one in enumerate(good) if other != rank]
    try:
        dumps.append(RankDump(rank, "", TAKEN, condense(parse(damaged))))
        prefix = "read"
    except NoDump:
        prefix = "refused"
    verdicts = judge(dumps).verdicts
    named = {one for verdict in verdicts for one in verdict.ranks if verdict.kind != "missing_dump"}
    without = {one for verdict in verdicts for one in verdict.ranks if verdict.kind == "missing_dump"}
    if named - right or without - right - {rank}:
        return "wrong"
    return f"{prefix}, {'all' if named == right else 'fewer or none'} named"


JOB = """
import os, sys, threading, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank, folder, odd, how = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
one = torch.ones(1000)
for _ in range(5): dist.all_reduce(one)
if rank < 2: (dist.send if rank == 0 else dist.recv)(one, 1 - rank)
def end():
    with open(f"{folder}/trace_rank_{rank}", "wb") as file: file.write(_dump_fr_trace())
    os._exit(0)
threading.Timer(14, end).start()
if rank != odd: dist.all_reduce(one)
elif how == "broadcast": dist.broadcast(one, odd)
else: dist.all_gather([torch.ones(1000) for _ in range(4)], one)
threading.Event().wait()
"""


def mismatches(number: int) -> list[str]:
    """Jobs of four gloo ranks of which one calls another operation; the verdict on each."""
    told = []
    for run in range(number):
        odd = run % 4
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
            free.close()
            common = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            arguments = [folder, str(odd), "broadcast" if run % 2 else "gather"]
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-c", JOB, *arguments],
                    env=os.environ | common | {"RANK": str(rank)},
                    stderr=subprocess.DEVNULL,
                )
                for rank in range(4)
            ]
            for one in ranks:
                one.wait()
            verdicts = judge(read_dumps(find_files([folder])[0])[0]).verdicts
            right = [(one.kind, one.ranks) for one in verdicts] == [("metadata_mismatch", (odd,))]
            told.append("named" if right else f"rank {odd}: {verdicts}")
    return told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="*", default=[2000, 20_000], help="sizes of a dump")
    parser.add_argument("--flips", action="store_true", help="damage every bit of the real dumps instead")
    parser.add_argument("--mismatches", type=int, default=0, metavar="N", help="play N jobs of gloo instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.flips:
        answer: object = flips()
    elif args.mismatches:
        answer = mismatches(args.mismatches)
    else:
        large = large_files()  # first: the children that import torch take more memory
        answer = {"reading": [reading(one, 5) for one in args.calls], "large_files": large}
    print(json.dumps(answer, indent=None if args.json else 2))


if __name__ == "__main__":
    main()
