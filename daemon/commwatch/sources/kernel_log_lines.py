"""Parses records of the kernel log about GPUs, NVSwitches and network adapters: a pure function from bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from commwatch.readings import EventKind
from commwatch.sources.adapter_lines import parse_adapter

LONGEST_TEXT: Final = 1024
"""Characters of a report that are kept; a record of the kernel has at most 2,048 or 8,192 bytes."""

FALLEN_OFF_BUS: Final = "fallen_off_bus"
GSP_ERRORS_LIMITED: Final = "gsp_errors_limited"
NVLINK_DETECTION_FAILED: Final = "nvlink_detection_failed"
INIT_FAILED: Final = "init_failed"
UNREADABLE: Final = "unreadable_xid"
"""A line that begins as an Xid or SXid and has another form: it is counted and logged, and nothing is made of it."""

_MESSAGES: Final = (
    ("fallen off the bus", FALLEN_OFF_BUS),
    ("Rate limiting GSP RPC error prints", GSP_ERRORS_LIMITED),
    ("knvlinkUpdatePostRxDetectLinkMask", NVLINK_DETECTION_FAILED),
    ("postRxDetLinkMask failed", NVLINK_DETECTION_FAILED),
    ("RmInitAdapter failed", INIT_FAILED),
)
"""Lines without a number that report a fault, by a phrase that all their wordings share."""

MESSAGES: Final = (*(name for _, name in _MESSAGES), UNREADABLE)
"""The bounded names of messages."""

# The texts begin with these words, which are longer than the 15 bytes of a process name: anyone can choose one, and the
# kernel begins with it the line of a crash, which also names a file, and that of memory that it could not get.
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.([0-7]))?"
    r"((?: GPU-C?I:[0-9]{1,3})*)\): ([0-9]{1,5})(?![0-9]),?\s*(.*)",
    re.DOTALL,
)
_SXID: Final = re.compile(
    r"nvidia-nvswitch[0-9]{1,3}:? SXid \(PCI:([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])\): "
    r"([0-9]{1,6})(?![0-9]),\s*(.*)",
    re.DOTALL,
)
_OF_XIDS: Final = re.compile(r"NVRM: Xid\b|nvidia-nvswitch[0-9]{1,3}:? SXid\b")
_OF_PROCESS: Final = re.compile(r"NVRM.{0,44}\[[0-9]{1,10}\]|.*,cpuset=", re.DOTALL)
"""How the kernel's own lines begin about a process that is called NVRM; of a name that is not UTF-8 each byte has four
characters here. The file or the cgroup in such a line can have any name, that of a fault too."""
_ADDRESS: Final = re.compile(
    r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.([0-7]))?(?![0-9A-Fa-f:])"
)
_SXID_DUMP: Final = ("Severity ", "Data {")
"""How the lines begin in which the driver dumps registers after an SXid, under the same number: no further events."""

_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
_PROCESS: Final = re.compile(r"pid=[^,]*, name=[^,]*, ")
_NVLINK5: Final = re.compile(
    r"(\S+(?: degraded)?)\s+(Fatal|Nonfatal)\s+XC[01]\s+i[0-9]+\s+Link\s+(-?[0-9]{1,3})\s+"
    r"(?:\(0x([0-9A-Fa-f]{1,8})\b|:)"
)
_NO_PROCESS: Final = "name=<unknown>, "
_LONGEST_NAME: Final = 15
"""Characters of a process name in the kernel."""
_FATAL: Final = re.compile(r"(?<![\w-])Fatal\b")
_SXID_TEXT: Final = re.compile(r"(Fatal|Non-fatal)(?:, Link ([0-9]{1,3}))?\b")

_KERNEL_FACILITY: Final = 0


@dataclass(frozen=True, slots=True)
class LogRecord:
    """The head and the text of one record of ``/dev/kmsg``."""

    sequence: int
    """Grows by one with each record of a boot, from 0."""
    microseconds: int
    """Time of the record on the kernel's own clock, which begins with the boot."""
    from_kernel: bool
    """Whether the kernel itself wrote it; else a program did, by writing to the file."""
    text: str
    """The line, with the kernel's escapes undone; several lines where one message has several."""


@dataclass(frozen=True, slots=True)
class Report:
    """An event of a GPU, an NVSwitch or a network adapter that a line of the kernel log reports."""

    kind: EventKind
    device: str
    """PCI address as sysfs spells it; empty where the line names none."""
    code: str
    """Number of the Xid or SXid, or the name of the message."""
    text: str
    """The remainder of the line."""


def parse_record(record: bytes) -> LogRecord | None:
    """One record as a read of ``/dev/kmsg`` gives it; None for bytes that are no record.

    Its form: ``LEVEL,SEQUENCE,MICROSECONDS,FLAGS[,more];TEXT``, then lines of properties that begin with a space.
    Fragments of a line (flags ``c`` and ``+``, kernels before 4.10) count as records of their own.
    """
    head, separator, body = record.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 4 or not all(part.isdigit() and len(part) <= 18 for part in fields[:3]):
        return None
    line, _, _properties = body.partition(b"\n")
    text = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), line).decode("utf-8", "backslashreplace")
    level, sequence, microseconds = (int(part) for part in fields[:3])
    return LogRecord(sequence, microseconds, level >> 3 == _KERNEL_FACILITY, text.strip())


def parse_report(text: str) -> Report | None:
    """The event that a line reports; None for all other lines."""
    if match := _XID.match(text):
        instance = match[5].strip()
        rest = f"{instance} {match[7]}" if instance else match[7]
        return Report("xid", _address(match), str(int(match[6])), _shortened(rest))
    if match := _SXID.match(text):
        if match[6].startswith(_SXID_DUMP):
            return None
        return Report("sxid", _address(match), str(int(match[5])), _shortened(match[6]))
    if adapter := parse_adapter(text):
        device, code, words = adapter
        return Report("adapter", device, code, _shortened(words))
    if _OF_PROCESS.match(text):
        return None
    if _OF_XIDS.match(text):
        where = _ADDRESS.search(text)
        return Report("message", _address(where) if where else "", UNREADABLE, _shortened(text))
    if text.startswith("NVRM"):
        for phrase, name in _MESSAGES:
            if phrase in text:
                where = _ADDRESS.search(text)
                return Report("message", _address(where) if where else "", name, _shortened(text))
    return None


def details(kind: EventKind, text: str) -> dict[str, str | int]:
    """The details that a report's text has in a fixed form; empty if it has none.

    NVLink 5 (Xid 144 to 150, and 155): ``unit``, ``fatal``, ``link`` (left out where the driver names none) and
    ``sub_code`` (bits 20 to 25 of the first word, which 155 lacks). SXid: ``fatal`` and ``link``.
    """
    if kind == "sxid":
        match = _SXID_TEXT.match(text)
        if match is None:
            return {}
        link = {} if match[2] is None else {"link": int(match[2])}
        return {"fatal": match[1], **link}
    match = _NVLINK5.match(_PROCESS.sub("", text, count=1)) if kind == "xid" else None
    if match is None:
        return {}
    number = int(match[3])
    link = {"link": number} if number >= 0 else {}
    sub_code = {} if match[4] is None else {"sub_code": int(match[4], 16) >> 20 & 0x3F}
    return {"unit": match[1], "fatal": match[2], **link, **sub_code}


_INIT_CODE: Final = re.compile(
    r"RmInitAdapter failed!? ?(\((?:0x)?[0-9A-Fa-f]{1,8}(?::(?:0x)?[0-9A-Fa-f]{1,8}){0,3}\))"
)


def init_failure(text: str) -> str:
    """Why the driver could not start a GPU, by its line: ``RmInitAdapter failed (0x24:0x72:1568)``."""
    match = _INIT_CODE.search(text)
    return f"RmInitAdapter failed {match[1]}" if match else "RmInitAdapter failed"


def is_fatal(kind: EventKind, text: str) -> bool:
    """Whether the driver itself calls an Xid or an SXid of any number ``Fatal`` in its line."""
    if kind not in ("xid", "sxid"):
        return False
    said = details(kind, text).get("fatal")
    return said == "Fatal" or (said is None and _FATAL.search(_beyond_process(text)) is not None)


_ESCAPED_BYTE: Final = re.compile(r"\\x[0-9a-f]{2}")


def _beyond_process(text: str) -> str:
    """The text of a report without what can be the name of a process, which anyone can choose: 15 characters."""
    rest = text.replace(_NO_PROCESS, "", 1)
    before, name, after = rest.partition("name=")
    after = _ESCAPED_BYTE.sub("?", after)  # of what is not UTF-8 each byte has four characters here
    return before + after[_LONGEST_NAME:] if name else rest


def is_nonfatal(kind: EventKind, text: str) -> bool:
    """Whether the driver itself marks an Xid of NVLink 5, or an SXid, as not fatal."""
    return details(kind, text).get("fatal") in ("Nonfatal", "Non-fatal")


def _address(match: re.Match[str]) -> str:
    """The PCI address in groups 1 to 4, as sysfs spells it; GPUs are function 0, which most lines leave out."""
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4] or '0'}".lower()


def _shortened(text: str) -> str:
    return text.strip()[:LONGEST_TEXT]
