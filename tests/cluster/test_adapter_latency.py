"""The latency of two adapters alone: a stand-in for ib_write_lat that prints what perftest's does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from commwatch.cluster.adapter_latency import adapter_latency, typical_latency, why_not
from commwatch.cluster.locate import locate
from commwatch.cluster.probe_store import ProbeResult
from commwatch.cluster.run_file import SCHEMA, Measured, Member, Run
from commwatch.commands.cluster_probe import probe_lines
from support.passes import in_one_pass

PRINTED = """\
                    RDMA_Write Latency Test
 Dual-port       : OFF          Device         : mlx5_0
 Connection type : RC           Using SRQ      : OFF
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          1.03           4.20         1.06              1.08           0.09            1.31                   4.20
---------------------------------------------------------------------------------------
"""  # noqa: E501


@in_one_pass(
    "text, seconds",
    [(PRINTED, 1.06e-6), ("", None), (PRINTED.replace("1.06", "none"), None), (PRINTED.replace("t_typical", "t"), None),
     (PRINTED.replace("1.06", "0.00"), None)],
)  # fmt: skip
def test_the_typical_time_is_read_from_what_is_printed(text: str, seconds: float | None) -> None:
    """In microseconds there, by the name of its column; the format is perftest's."""
    assert typical_latency(text) == (seconds if seconds is None else pytest.approx(seconds))


def test_both_ends_run_it_and_the_one_that_connects_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the other end listens."""
    program, log = tmp_path / "ib_write_lat", tmp_path / "log"
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n[ $(wc -l < {log}) -lt 2 ] && exit 1\ncat <<"END"\n{PRINTED}END\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert why_not(["mlx5_0"]) == ""
    assert asyncio.run(adapter_latency("mlx5_0", "10.0.0.1", 4000, end=1)) == pytest.approx(1.06e-6)
    assert log.read_text().splitlines() == ["-d mlx5_0 -s 8 -n 1000 -F -p 4000 10.0.0.1"] * 2
    assert asyncio.run(adapter_latency("mlx5_0", "10.0.0.1", 4000, end=0)) == pytest.approx(1.06e-6)
    assert log.read_text().splitlines()[-1] == "-d mlx5_0 -s 8 -n 1000 -F -p 4000"


def test_where_it_cannot_be_measured_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No adapter, or no program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not([""]) == "no rail is an RDMA device"
    assert why_not(["mlx5_0"]) == "ib_write_lat of perftest is not installed"
    assert asyncio.run(adapter_latency("mlx5_0", "10.0.0.1", 4000, end=1)) is None


def result(*latencies: float | None, **others: object) -> ProbeResult:
    """A run of three nodes, whose pairs had these latencies."""
    pairs = [(0, 1), (0, 2), (1, 2)]
    measured = tuple(
        Measured(number, *pair, 0, forward=20e9, backward=20e9, adapter_latency=latency)
        for number, (pair, latency) in enumerate(zip(pairs, latencies, strict=True), start=1)
    )
    run = Run(SCHEMA, tuple(Member(f"gpu{number}") for number in range(3)), measured)
    plain = ProbeResult(backend="nccl", members=(), run=run, verdict=locate(run), occupied_seconds=1.0)
    return msgspec.structs.replace(plain, **others)


def said(found: ProbeResult) -> str:
    return next(line for line in probe_lines(found) if line.startswith("latency of the adapters")).partition(": ")[2]


def test_infiniband_hdr_is_held_against_its_mark() -> None:
    """1.2 µs; another adapter has its figures alone."""
    assert said(result(None, None, None, no_adapter_latency="why")) == "not measured: why"
    assert said(result(1.0e-6, 1.1e-6, 1.05e-6)) == "1.05 µs usual, 1.1 µs at most"
    assert said(result(1.0e-6, 1.1e-6, 1.05e-6, hdr_rails=(0,))).endswith("at most 1.2 µs: reached")
    assert said(result(1.0e-6, 1.3e-6, 1.05e-6, hdr_rails=(0,))).endswith("missed by gpu0 with gpu2 on rail 0")


def test_a_slow_adapter_is_named_by_its_latency() -> None:
    """Half as much again as others, though its bandwidth is theirs."""
    (named,) = result(1.0e-6, 2.0e-6, 2.0e-6).verdict.open or result(1.0e-6, 2.0e-6, 2.0e-6).verdict.named

    assert (named.fault, "gpu2" in named.elements) == ("latency", True)
