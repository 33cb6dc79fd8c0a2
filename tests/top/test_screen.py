"""The layout of commwatch top: whole screens against recorded ones, and what must hold at any size."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from commwatch.findings.api_documents import ProbeRecord
from commwatch.findings.finding import Component
from commwatch.jobs.evidence import JobEvidence
from commwatch.lines import Line, plain
from commwatch.views.top.frame import Documents, View
from commwatch.views.top.live import Looking
from commwatch.views.top.screen import Place, page_lines, screen
from support.facts import shipped
from support.findings import finding
from support.passes import in_one_pass
from top.documents import BUSY, faulty, healthy, made

GOLDEN = Path(__file__).parents[1] / "golden" / "top"
PORT = ("mlx5_0", "1")
pytestmark = pytest.mark.xdist_group("top_screen")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Documents, Documents]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return faulty(tmp_path_factory.mktemp("faulty"), monkeypatch)


@pytest.fixture(scope="module")
def view(said: tuple[Documents, Documents]) -> View:
    """A node with most faults, looked at since before them."""
    before, now = said
    return View("node17", shipped(), now, before.snapshot)


def time_of(view: View) -> float:
    assert view.documents is not None
    return view.documents.snapshot.time


def shown(view: View, width: int, height: int, **place: int | bool) -> list[str]:
    found = screen(view, Place(**place), (width, height), time_of(view))  # type: ignore[arg-type]  # of its fields
    return [plain(line) for line in found.lines]


def page(view: View, width: int = 80) -> str:
    return "\n".join(plain(line) for line in page_lines(view, width, time_of(view)))


def held_against(lines: list[str], name: str, request: pytest.FixtureRequest) -> None:
    text = "".join(f"{line}\n" for line in lines)
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"if this is meant: pytest {Path(__file__).name} --update-golden"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (160, 40)])
def test_a_screen_is_as_recorded(view: View, width: int, height: int, request: pytest.FixtureRequest) -> None:
    """Plain, so that all it says is said without colour."""
    held_against(shown(view, width, height), f"{width}x{height}", request)


def test_the_whole_page_of_80_columns_is_as_recorded(view: View, request: pytest.FixtureRequest) -> None:
    """What --once prints."""
    held_against(page(view).splitlines(), "page", request)


def test_a_healthy_node_is_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Little to read: no finding, no slow pair, no late collector."""
    held_against(page(View("node18", shipped(), healthy(tmp_path, monkeypatch))).splitlines(), "healthy", request)


@in_one_pass("width", [1, 20, 41, 79, 80, 132, 250])
@in_one_pass("height", [1, 2, 5, 24, 100])
def test_a_screen_fits_its_terminal(view: View, width: int, height: int) -> None:
    """However small it is: no line too many, none too wide."""
    lines = screen(view, Place(offset=3), (width, height), time_of(view)).lines

    assert len(lines) <= height
    assert max(sum(len(text) for text, _ in line) for line in lines) <= width


def test_scrolling_shows_every_line_once_and_stops_at_the_end(view: View) -> None:
    """Page by page the body is the whole page, below a head that stays."""
    height, offset = 24, 0
    seen: list[Line] = []
    while True:
        found = screen(view, Place(offset=offset), (80, height), time_of(view))
        if found.offset < offset:  # the last page is full
            seen += found.lines[2 + offset - found.offset : -1]
            break
        seen += found.lines[2:-1]
        offset += found.page

    assert [plain(line) for line in seen] == page(view).splitlines()[2:]
    assert "SIMULATED NODE h100x8ndr" in shown(view, 80, 24, offset=10**9)[1]


def test_errors_since_the_first_look_are_new(view: View) -> None:
    """Behind a plus; without a first look there is none."""
    assert re.search(r"^0 .* \d[\d.]*k \+\d[\d.]*k ", page(view, 100), re.MULTILINE)
    assert not re.search(r"\d \+\d", page(replace(view, first=None), 100))


def test_a_probe_says_its_next_run_and_why_it_was_skipped(view: View) -> None:
    """And what it found, where that is more than two numbers."""
    text = page(view)

    assert re.search(r"^all_reduce .* in 12 min$", text, re.MULTILINE)
    assert f"  pairs skipped: {BUSY}" in text
    assert "GPU0 to GPU1: " in text


def test_no_answer_is_said_above_the_last_one(view: View) -> None:
    """With since when; the screen below stays."""
    lost = replace(view, trouble="no commwatch daemon runs", trouble_seconds=12.0)

    lines = shown(lost, 80, 24)

    assert "NO ANSWER for 12 s: no commwatch daemon runs" in lines
    assert "  asking again; below is the last answer" in lines
    assert lines[4:-1] == shown(view, 80, 24)[2:-3]


def test_the_clock_counts_whole_seconds_however_long_answers_take() -> None:
    """It neither stands still nor goes back where an answer comes late; a clock that was set is followed."""
    clock = [100.0]
    looking = Looking("n", shipped(), lambda: clock[0])
    told = made()

    def clock_after(seconds: float, daemon_time: float) -> float:
        clock[0] += seconds
        snapshot = msgspec.structs.replace(told.snapshot, time=daemon_time)
        looking.answered(Documents(told.findings, told.probes, snapshot))
        return looking.moment()[1]

    assert clock_after(0.0, 5000.0) == 5000.0
    assert clock_after(2.0, 5001.7) == 5002.0  # it was under way for 0.3 s
    assert clock_after(2.0, 5004.2) == 5004.0
    assert clock_after(2.0, 9000.0) == 9000.0


def test_before_the_first_answer_only_the_trouble_is_shown() -> None:
    """Nothing is made up."""
    found = screen(View("node17", shipped(), trouble="refused"), Place(), (80, 24), 0.0)

    lines = [plain(line) for line in found.lines]
    assert lines[:3] == [
        f"{'commwatch top  node17':<68}00:00:00 UTC"[:80],
        "NO ANSWER for 0 s: refused",
        "  asking again",
    ]
    assert not any(lines[3:-1])


def test_a_paused_screen_and_the_help_say_so(view: View) -> None:
    """In the last line, with the key that goes on."""
    assert shown(view, 80, 24, is_paused=True)[-1].startswith("PAUSED  q quit  p go on")
    assert "q             quit" in shown(view, 80, 24, shows_help=True)


def test_what_was_not_read_is_a_dash() -> None:
    """A GPU of which nothing but its state is known; never a 0."""
    text = page(View("n", shipped(), made(("gpu_state", ("5", "0000:17:00.0"), 2))))

    assert re.search(r"^5    lost   -     -        -      -       -     -      -$", text, re.MULTILINE)
    assert "score: not measured" in text
    assert "no GPU is read" in text
    assert "no matrix is young enough" in text


@in_one_pass(
    "width, heads",
    [
        (80, ()), (99, ()), (100, ("Slot",)), (108, ("Slot", "Temp")), (120, ("Slot", "Power", "Temp")),
        (132, ("Slot", "Power", "Memory", "Temp")), (250, ("Slot", "Power", "Memory", "Temp")),
    ],
)  # fmt: skip
def test_a_wider_terminal_shows_more_of_each_gpu(width: int, heads: tuple[str, ...]) -> None:
    """Slot, temperature, power and memory, with their limits; one that was not read is a dash, a limit is left out."""
    gpu = ("0", "0000:17:00.0")
    text = page(
        View("n", shipped(), made(
            ("gpu_state", gpu, 0.0), ("gpu_power_watts", gpu, 411.6), ("gpu_power_limit_watts", gpu, 700.0),
            ("gpu_memory_used_bytes", gpu, 61 * 2.0**30), ("gpu_memory_size_bytes", gpu, 80 * 2.0**30),
            ("gpu_state", ("1", "0000:18:00.0"), 0.0), ("gpu_power_watts", ("1", "0000:18:00.0"), 70.0),
        )),
        width,
    )  # fmt: skip
    shown_heads = re.search(r"^GPU .*$", text, re.MULTILINE)
    first, second = re.findall(r"^[01] .*$", text, re.MULTILINE)

    assert shown_heads is not None
    assert tuple(head for head in shown_heads[0].split() if head in ("Slot", "Power", "Memory", "Temp")) == heads
    assert ("412/700 W" in first) == ("70 W" in second) == ("Power" in heads)
    assert ("61/80 GiB" in first) == ("Memory" in heads)


@pytest.mark.parametrize(
    ("width", "names"), [(80, ["2 0000:3a:00.0", "2 0000:5d:00.0", "3 "]), (110, ["2 ", "2 ", "3 "])]
)
def test_a_lost_card_and_the_one_with_its_index_are_told_apart(width: int, names: list[str]) -> None:
    """By their addresses, which a narrow terminal has no column for."""
    gpus = (("2", "0000:3a:00.0", 4.0), ("2", "0000:5d:00.0", 0.0), ("3", "0000:9a:00.0", 0.0))
    text = page(View("n", shipped(), made(*[("gpu_state", one[:2], one[2]) for one in gpus])), width)
    rows = re.findall(r"^[23] .*$", text, re.MULTILINE)

    assert [row[: len(name)] for row, name in zip(rows, names, strict=True)] == names
    assert all(one[1] in row for one, row in zip(gpus[:2], rows[:2], strict=True))


def test_errors_are_the_sum_of_all_counters_that_the_rules_hold_against_limits() -> None:
    """Those without a name in the model among them; of a GPU those of its links."""
    link = ("0", "0000:17:00.0", "3")
    text = page(
        View(
            "n",
            shipped(),
            made(
                ("nvlink_crc_flit_errors_total", link, 2),
                ("nvlink_malformed_packets_total", link, 3),
                ("gpu_state", link[:2], 0),
                ("rdma_port_state", ("mlx5_0", "1"), 4),
                ("rdma_port_symbol_errors_total", ("mlx5_0", "1"), 4),
                ("rdma_port_link_error_recovery_total", ("mlx5_0", "1"), 7),
            ),
        )
    )

    assert re.search(r"^0 +ok( +-){3} +5 ", text, re.MULTILINE)
    assert re.search(r"^mlx5_0/1 +- +active( +-){2} +11 ", text, re.MULTILINE)


@pytest.mark.parametrize(("functions", "use"), [((), "0/1"), ((("rdma_port_virtual_functions", PORT, 8),), "≥0/1")])
def test_the_use_of_a_port_is_a_bound_where_its_adapter_has_virtual_functions(
    functions: tuple[tuple[str, tuple[str, ...], float], ...], use: str
) -> None:
    """They count themselves what they send."""
    ways = (("rdma_port_transmit_utilization_ratio", PORT, 0.0), ("rdma_port_receive_utilization_ratio", PORT, 0.01))
    text = page(View("n", shipped(), made(("rdma_port_state", PORT, 4), *ways, *functions)))

    assert re.search(rf"^mlx5_0/1 +- +active +- +{use} ", text, re.MULTILINE)


@pytest.mark.parametrize("code", ["job_stuck_suspected", "job_stuck"])
def test_the_words_of_a_jobs_sources_are_below_its_finding(code: str) -> None:
    documents = made()
    words = ("Flight Recorder: rank 3 did not call all_reduce 6", "RAS shows no difference between the ranks")
    evidence = tuple(JobEvidence("ras", one) for one in words)
    job = finding(code, Component("process", "0000:17:00.0", "job on GPU0"), job_evidence=evidence)
    findings = msgspec.structs.replace(documents.findings, findings=(job,))
    lines = page(View("", shipped(), msgspec.structs.replace(documents, findings=findings)), 100).splitlines()
    assert [line.strip() for line in lines if "from the job" in line] == [f"from the job: {one}" for one in words]


def test_every_text_from_outside_is_printable() -> None:
    """Escape sequences, line breaks and unpaired surrogates in names, reasons and results become question marks."""
    evil = "a\x1b[2J\r\nb\x9b\udc80\u202e"
    documents = made(
        ("gpu_info", ("0", evil, "u", "s", evil, "h"), 1),
        ("ethernet_info", (evil, "", "", ""), 1),
        ("rdma_port_info", (evil, "1", evil, "", "", "", "", "", ""), 1),
        ("collector_success", (evil,), 0),
        ("pair_bandwidth_bytes_per_second", (evil, "1", "nccl"), 1e9),
        ("pair_expected_bandwidth_bytes_per_second", (evil, "1", "nccl"), 1e11),
        maintenance=evil,
    )
    probe = ProbeRecord(evil, evil, evil, None, None, evil)
    probes = msgspec.structs.replace(documents.probes, probes=(probe,))
    view = View(evil, shipped(), msgspec.structs.replace(documents, probes=probes), trouble=evil)

    for text in (page(view, 200), "\n".join(shown(view, 200, 100))):
        assert all(line.isprintable() for line in text.split("\n"))
        assert text.count("a?[2J") > 8


def test_collectors_that_are_late_or_fail_are_named() -> None:
    """Late: three intervals and ten seconds after the last success."""
    now = 1_767_261_600.0
    rows = [("fine", 1, 30.0, 10.0), ("late", 1, 41.0, 10.0), ("failing", 0, 5.0, 10.0)]
    series = [
        one
        for name, success, behind, interval in rows
        for one in (
            ("collector_success", (name,), float(success)),
            ("collector_interval_seconds", (name,), interval),
            ("collector_last_success_timestamp_seconds", (name,), now - behind),
        )
    ]

    text = page(View("n", shipped(), made(*series, ("worker_stuck", ("nvml",), 1.0), now=now)))

    assert "Collectors  1 of 3 in time" in text
    assert re.search(r"^late +late +41 s ago +every 10 s$", text, re.MULTILINE)
    assert re.search(r"^failing +fails +5 s ago +every 10 s$", text, re.MULTILINE)
    assert "worker nvml: 1 of its processes hang" in text


def test_a_paused_daemon_is_unknown_as_healthcheck_says() -> None:
    """With the reason of the pause."""
    text = page(View("n", shipped(), made(maintenance="driver upgrade")))

    assert "Unknown: the daemon is paused (driver upgrade)" in text


def test_the_rails_between_nodes_are_shown_once_a_run_has_measured_the_node() -> None:
    """Beside what is usual, with what the run named; too old a run says so, and without one nothing is said."""
    last = ("cluster_last_completion_timestamp_seconds", (), 1_790_000_000.0)
    series = (
        last,
        ("cluster_rail_bandwidth_bytes_per_second", ("1", "mlx5_1", "sent", "nccl"), 25e9),
        ("cluster_rail_peer_ratio", ("1", "mlx5_1", "sent", "nccl"), 0.5),
        ("cluster_rail_latency_seconds", ("1", "mlx5_1", "nccl"), 3e-6),
        ("cluster_pairs", ("1", "mlx5_1", "slow"), 3.0),
        ("cluster_suspect_runs", ("nic", "mlx5_1", "bandwidth"), 2.0),
        ("cluster_suspect_ratio", ("nic", "mlx5_1", "bandwidth"), 0.5),
    )
    now = 1_790_003_600.0

    text = page(View("n", shipped(), made(*series, now=now)))
    assert "Between nodes  last run 60 min ago" in text
    assert re.search(r"mlx5_1 +25 GB/s +50 % +- +- +3 µs +3 slow", text)
    assert "nic mlx5_1: bandwidth, 50 % of the usual, in 2 runs in a row" in text
    assert "too old to say anything" in page(View("n", shipped(), made(last, now=now)))
    assert "Between nodes" not in page(View("n", shipped(), made(now=now)))


def test_what_the_last_check_blames_is_shown() -> None:
    """With its age; a check that blames this node for nothing takes no line."""
    now = 1_790_003_600.0
    last = ("cluster_last_check_timestamp_seconds", (), now - 3600)
    failed = (("cluster_check_failed", ("filtered",), 1.0), ("cluster_check_failed", ("mtu",), 0.0))

    text = page(View("n", shipped(), made(last, *failed, now=now)))
    assert "Last check between nodes  60 min ago" in text
    assert "blames this node: filtered\n" in text + "\n"
    assert "check between nodes" not in page(View("n", shipped(), made(last, failed[1], now=now)))
