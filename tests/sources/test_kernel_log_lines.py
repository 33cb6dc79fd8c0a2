"""What lines of the kernel log tell, and that any bytes are taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.sources.kernel_log_lines import (
    LONGEST_TEXT,
    details,
    init_failure,
    is_fatal,
    is_nonfatal,
    parse_record,
    parse_report,
)
from support.passes import in_one_pass

CORPUS = [
    tuple(line.split(" | ", 1))
    for line in (Path(__file__).parent / "corpus/kernel_log.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
LINES = [text for _, text in CORPUS]


def told(text: str) -> str:
    """What the line of a whole record tells, as the corpus writes it."""
    record = parse_record(f"6,1,1000000,-;{text}\n".encode())
    assert record is not None
    report = parse_report(record.text)
    return "none" if report is None else f"{report.kind} {report.device or '-'} {report.code}"


@in_one_pass("expected, text", CORPUS)
def test_each_line_of_the_corpus_is_understood(expected: str, text: str) -> None:
    """Kind, address and number of each form, and nothing of lines that look alike."""
    assert told(text) == expected


def test_the_head_of_a_record_tells_number_time_and_writer() -> None:
    """Level 6 of facility 0 is the kernel's, of facility 1 a program's; more fields after the flags do no harm."""
    record = parse_record(b"6,1234,5678901234,-;NVRM: something\n SUBSYSTEM=pci\n DEVICE=+pci:0000:17:00.0\n")
    by_program = parse_record(b"14,7,1,c,caller=T12;text")

    assert record is not None
    assert (record.sequence, record.microseconds, record.from_kernel) == (1234, 5678901234, True)
    assert record.text == "NVRM: something"
    assert by_program is not None
    assert (by_program.from_kernel, by_program.text) == (False, "text")


def test_escapes_of_the_kernel_are_undone() -> None:
    """The kernel writes what cannot be printed as \\xNN, also the bytes of one letter."""
    record = parse_record(rb"6,1,1,-;a\x0ab \xc3\xa4 \xff \x5c end" + b"\n")

    assert record is not None
    assert record.text == "a\nb ä \\xff \\ end"


@in_one_pass(
    "record", [b"", b"6,1,1,-", b"6,1,1;x", b"6,one,1,-;x", b"6,-1,1,-;x", b"6,1," + b"9" * 19 + b",-;x", b",,,;x"]
)
def test_what_is_no_record_is_nothing(record: bytes) -> None:
    """A head that lacks a part, or has a number that no kernel writes."""
    assert parse_record(record) is None


def test_the_text_of_a_report_is_the_rest_of_its_line() -> None:
    """The instance of a divided GPU stays in it; a long text is cut."""
    divided = parse_report("NVRM: Xid (PCI:0000:3b:00 GPU-I:02 GPU-CI:01): 43, pid=411, name=python3, Ch 8")
    long = parse_report("NVRM: Xid (PCI:0000:3b:00): 43, " + "x" * 8000)

    assert divided is not None
    assert divided.text == "GPU-I:02 GPU-CI:01 pid=411, name=python3, Ch 8"
    assert long is not None
    assert len(long.text) == LONGEST_TEXT


def test_the_extended_form_of_nvlink_5_is_taken_apart() -> None:
    """Unit event, gravity, link and sub-code; bits 20 to 25 of 0x025525c6 are 37, and link -1 is no link."""
    link_event = parse_report(LINES[8])
    no_link = parse_report(LINES[9])
    with_process = parse_report(LINES[10])

    assert link_event is not None
    assert no_link is not None
    assert with_process is not None
    assert details("xid", link_event.text) == {"unit": "NETIR_LINK_EVT", "fatal": "Fatal", "link": 9, "sub_code": 37}
    assert details("xid", no_link.text) == {"unit": "RLW_SRC_TRACK", "fatal": "Nonfatal", "sub_code": 0}
    assert details("xid", with_process.text)["link"] == 3


def test_an_sxid_names_gravity_and_link() -> None:
    """Where the line has them; an Xid of the common form has nothing of the kind."""
    assert details("sxid", "Fatal, Link 30 LTSSM Fault Up") == {"fatal": "Fatal", "link": 30}
    assert details("sxid", "Non-fatal, something") == {"fatal": "Non-fatal"}
    assert details("sxid", "Host_unhandled_interrupt") == {}
    assert details("xid", "pid=1, name=a, GPU has fallen off the bus.") == {}


ADDRESS = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")


@given(
    st.binary(max_size=300) | st.builds(lambda text, tail: text.encode() + tail, st.sampled_from(LINES), st.binary())
)
def test_any_bytes_are_taken(data: bytes) -> None:
    """Whatever follows the head, the outcome is nothing or a report of bounded parts."""
    parse_record(data)
    record = parse_record(b"4,99,123,-;" + data)
    assert record is not None
    report = parse_report(record.text)
    if report is None:
        return
    details(report.kind, report.text)
    record.text.encode()
    assert ADDRESS.fullmatch(report.device)
    assert re.fullmatch("[0-9]{1,6}|[a-z_]{1,32}", report.code)
    assert len(report.text) <= LONGEST_TEXT


@given(st.sampled_from(LINES), st.data())
def test_a_line_that_was_cut_or_changed_is_taken(text: str, data: st.DataObject) -> None:
    """A mutated line raises nothing, and what it tells keeps its form."""
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    record = parse_record(b"4,99,123,-;" + bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    assert record is not None
    report = parse_report(record.text)
    assert report is None or ADDRESS.fullmatch(report.device)


@in_one_pass(
    "line, fatal",
    [
        ("NVRM: Xid (PCI:0000:17:00): 145, RLW_CTRL  Fatal   XC0 i0 Link 04 (0x004505c6 0x0)", True),
        ("NVRM: Xid (PCI:0000:17:00): 145, RLW_CTRL  Nonfatal   XC0 i0 Link 04 (0x004505c6 0x0)", False),
        ("NVRM: Xid (PCI:0000:17:00): 199, pid='<unknown>', name=<unknown>, NEW_UNIT Fatal XC0 i0 Link 04 (0x1)", True),
        ("NVRM: Xid (PCI:0000:17:00): 199, pid='<unknown>', name=<unknown>, Fatal error of a new unit", True),
        ("NVRM: Xid (PCI:0000:17:00): 199, pid=4711, name=python3, a new unit: Fatal", True),
        ("NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=x, Fatal, Ch 00000008, intr 00000000", False),
        ("NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=Fatal, Ch 00000008", False),
        ("NVRM: Xid (PCI:0000:17:00): 74, NVLink: fatal error detected on link 3(0x0)", False),
        ("NVRM: Xid (PCI:0000:17:00): 199, Non-Fatal error of a new unit", False),
        ("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 29006, Fatal, Link 46 MC TS crumbstore MCTO (First)", True),
        ("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 29006, Non-fatal, Link 46 Fatal in another place", False),
    ],
)
def test_fatal_is_what_the_driver_says_and_no_name_of_a_process(line: str, fatal: bool) -> None:
    """Of any number; a name has 15 characters, and whoever starts the program chooses them."""
    report = parse_report(line)

    assert report is not None
    assert is_fatal(report.kind, report.text) == fatal


def test_the_reason_of_a_gpu_that_did_not_start_is_taken_from_its_line() -> None:
    """With the numbers where they have their form, and nothing else of the line."""
    assert init_failure("NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x40:2404)") == (
        "RmInitAdapter failed (0x62:0x40:2404)"
    )
    assert init_failure("NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (whatever)") == "RmInitAdapter failed"


@pytest.mark.parametrize("name", [rb"\xff\xff\xff\xff Fatal", rb"\xe6\xe6\xe6\xe6\xe6-Fatal"])
def test_a_name_that_is_no_text_makes_nothing_fatal(name: bytes) -> None:
    """The kernel writes four characters for each byte that is none; the name has 15 bytes all the same."""
    record = parse_record(b"4,1,5,-;NVRM: Xid (PCI:0000:17:00): 13, pid=4711, name=" + name + b", Graphics Exception\n")
    assert record is not None
    report = parse_report(record.text)

    assert report is not None
    assert not is_fatal(report.kind, report.text)


_XID = "NVRM: Xid (PCI:0000:17:00):"


@in_one_pass(
    "line, found",
    [
        (f"{_XID} 155, NVLINK_SW_DEFINED_ERROR Nonfatal XC0 i0 Link 03 : Link Down While Active.", ("Nonfatal", 3)),
        (f"{_XID} 155, NVLINK_SW_DEFINED_ERROR  Fatal   XC0 i0 Link 17 : Link Down While Active.", ("Fatal", 17)),
        (f"{_XID} 150, MSE degraded Nonfatal XC0 i0 Link -1 (0x00000000 0xffffffff 0x0)", ("Nonfatal", None)),
        (f"{_XID} 150, MSE degraded  Fatal   XC0 i0 Link -1 (0x00000000 0xffffffff 0x0)", ("Fatal", None)),
        (f"{_XID} 155, pid=4711, name=a Nonfatal XC0, NVLink: link 3 went down", (None, None)),
    ],
)
def test_lines_of_nvlink_5_without_a_sub_code_or_with_a_unit_of_two_words_are_rated(
    line: str, found: tuple[str | None, int | None]
) -> None:
    """As the open kernel driver prints them."""
    report = parse_report(line)

    assert report is not None
    said = details(report.kind, report.text)
    assert (said.get("fatal"), said.get("link")) == found
    assert is_nonfatal(report.kind, report.text) == (found[0] == "Nonfatal")
    assert is_fatal(report.kind, report.text) == (found[0] == "Fatal")
