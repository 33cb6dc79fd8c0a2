"""PCIe errors as the kernel counts them: Advanced Error Reporting (AER) of sysfs, kernel 4.19 and later.

A device has three files of lines such as ``Bad TLP 3``, and a root port three more of one number. They are there where
the operating system owns AER: not in virtual machines, not where the firmware handles errors first. Reading them asks
the kernel alone; no device is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from commwatch.readings import Absence, Reason
from commwatch.sources import files
from commwatch_exporters.snapshot import Series, Value

DEVICE_FILES: Final = {
    "correctable": "aer_dev_correctable",
    "nonfatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}
"""The file of each severity: errors that the device itself reported."""

ROOT_PORT_FILES: Final = {
    "correctable": "aer_rootport_total_err_cor",
    "nonfatal": "aer_rootport_total_err_nonfatal",
    "fatal": "aer_rootport_total_err_fatal",
}
"""The file of each severity: messages that a root port took from the devices below it, its own among them."""

OTHER: Final = "other"
"""An error without a name here: a bit that the kernel has no word for, or a word newer than this table."""

_TOTAL: Final = b"TOTAL_ERR"

ERROR_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "receiver_error": ("Receiver Error", "RxErr"),
    "bad_tlp": ("Bad TLP", "BadTLP"),
    "bad_dllp": ("Bad DLLP", "BadDLLP"),
    "replay_number_rollover": ("RELAY_NUM Rollover", "Rollover"),
    "replay_timer_timeout": ("Replay Timer Timeout", "Timeout"),
    "advisory_nonfatal": ("Advisory Non-Fatal", "NonFatalErr"),
    "corrected_internal_error": ("Corrected Internal Error", "CorrIntErr"),
    "header_log_overflow": ("Header Log Overflow", "HeaderOF"),
    "data_link_protocol": ("Data Link Protocol", "DLP"),
    "surprise_down": ("Surprise Down Error", "SDES"),
    "poisoned_tlp": ("Poisoned TLP", "TLP"),
    "flow_control_protocol": ("Flow Control Protocol", "FCP"),
    "completion_timeout": ("Completion Timeout", "CmpltTO"),
    "completer_abort": ("Completer Abort", "CmpltAbrt"),
    "unexpected_completion": ("Unexpected Completion", "UnxCmplt"),
    "receiver_overflow": ("Receiver Overflow", "RxOF"),
    "malformed_tlp": ("Malformed TLP", "MalfTLP"),
    "ecrc": ("ECRC", "ECRC"),
    "unsupported_request": ("Unsupported Request", "UnsupReq"),
    "acs_violation": ("ACS Violation", "ACSViol"),
    "uncorrectable_internal_error": ("Uncorrectable Internal Error", "UncorrIntErr"),
    "multicast_blocked_tlp": ("MC Blocked TLP", "BlockedTLP"),
    "atomic_egress_blocked": ("AtomicOp Egress Blocked", "AtomicOpBlocked"),
    "tlp_prefix_blocked": ("TLP Prefix Blocked Error", "TLPBlockedErr"),
    "poisoned_tlp_egress_blocked": ("Poisoned TLP Egress Blocked", "PoisonTLPBlocked"),
    "deferrable_write_egress_blocked": ("DMWr Request Egress Blocked", "DMWrReqBlocked"),
    "ide_check_failed": ("IDE Check Failed", "IDECheck"),
    "misrouted_ide_tlp": ("Misrouted IDE TLP", "MisIDETLP"),
    "pcrc_check_failed": ("PCRC Check Failed", "PCRC_CHECK"),
    "tlp_translation_egress_blocked": ("TLP Translation Egress Blocked", "TLPXlatBlocked"),
}
"""The label of each error, and how older and newer kernels write it (Linux ``drivers/pci/pcie/aer.c``)."""

_LABEL_OF: Final = {spelling.encode(): label for label, spellings in ERROR_NAMES.items() for spelling in spellings}


class Counts(NamedTuple):
    total: int | None
    """As the kernel gives it; it need not be the sum of the named errors, several of which may come in one message."""
    named: Mapping[str, int]
    """Errors by label; those that have not happened are left out."""


NO_COUNTS: Final = Counts(None, {})


@lru_cache(maxsize=128)  # most files of a node have the same content, and the one that they had before
def parse_counts(data: bytes) -> Counts:
    """The counts in an ``aer_dev_*`` file. Lines that end in no number are passed over.

    The last word of a line is the number; the text before it is the name, which may have blanks.
    """
    total: int | None = None
    named: dict[str, int] = {}
    for line in data.splitlines():
        if line.endswith(b" 0") and _TOTAL not in line:
            continue  # most lines, on most nodes
        words = line.rsplit(maxsplit=1)
        if len(words) != 2:
            continue
        count = files.parse_integer(words[1])
        if count is None or count < 0:
            continue
        name = words[0].strip()
        if name.startswith(_TOTAL):
            total = count
        elif count:
            label = _LABEL_OF.get(name, OTHER)
            named[label] = named.get(label, 0) + count
    return Counts(total, named)


def parse_messages(data: bytes) -> Counts:
    """The number in an ``aer_rootport_total_err_*`` file, as a total without names."""
    count = files.parse_integer(data)
    return Counts(count, {}) if count is not None and count >= 0 else NO_COUNTS


class _AerFile:
    """One file and what it said at the last run."""

    def __init__(self, path: str, severity: str, parse: Callable[[bytes], Counts]) -> None:
        self._path = path
        self._parse = parse
        self.severity = severity
        self.is_there = False
        """Whether the kernel had the file at the last run."""
        self.counts = NO_COUNTS
        self.happened: list[str] = []
        """Named errors seen so far."""

    def refresh(self) -> tuple[Reason, str] | None:
        """Read it again; returns why there are no counts."""
        self.is_there, self.counts = False, NO_COUNTS
        try:
            data = files.read(self._path)
        except FileNotFoundError:
            return None  # the kernel does not count these here
        except OSError as error:
            return files.reason_of(error), f"{self._path}: {error.strerror}"
        self.is_there, self.counts = True, self._parse(data)
        self.happened += [name for name in self.counts.named if name not in self.happened]
        return None if self.counts.total is not None else ("unreadable", f"{self._path}: no total in {data[:40]!r}")

    def named_values(self) -> list[Value]:
        """The named errors seen so far; 0 for one that began again, None where the file was not read."""
        if self.counts.total is None:
            return [None] * len(self.happened)
        return [self.counts.named.get(name, 0) for name in self.happened]


class AerDevice:
    """The AER files of one device. One thread.

    Totals are always given; a named error once it has happened, because the names of all severities would be some
    sixty series for each device.

    Args:
        home: directory of the device in sysfs.
        role: as on the metrics; of a ``root_port`` the messages that it took are read as well.
    """

    def __init__(self, home: str, address: str, role: str) -> None:
        self._labels = (address, role)
        self._own = [
            _AerFile(f"{home}/{name}", severity, parse_counts) for severity, name in DEVICE_FILES.items()
        ]  # fmt: skip
        self._messages = [
            _AerFile(f"{home}/{name}", severity, parse_messages)
            for severity, name in (ROOT_PORT_FILES.items() if role == "root_port" else ())
        ]
        self._files = (*self._own, *self._messages)
        self.series: tuple[Series, ...] = ()
        """Empty while the device has none of the files."""
        self.values: list[Value] = []

    def read(self) -> Absence | None:
        """Bring ``series`` and ``values`` up to date; returns the first thing that could not be read or understood."""
        failures = [file.refresh() for file in self._files]
        if self.series or any(file.is_there for file in self._files):
            self._fill()
        first = next(filter(None, failures), None)
        return None if first is None else Absence(self._labels[0], *first)

    def has_file(self) -> dict[str, bool]:
        """Whether the kernel has each of the files that a device of this role can have, by name."""
        own = {DEVICE_FILES[file.severity]: file.is_there for file in self._own}
        return own | {ROOT_PORT_FILES[file.severity]: file.is_there for file in self._messages}

    def _fill(self) -> None:
        address, role = self._labels
        named = [(file.severity, name) for file in self._own for name in file.happened]
        if len(self.series) < len(self._files) + len(named):
            self.series = (
                *(("commwatch_pcie_aer_errors_total", (address, role, file.severity)) for file in self._own),
                *(("commwatch_pcie_aer_root_port_errors_total", (address, file.severity)) for file in self._messages),
                *(("commwatch_pcie_aer_named_errors_total", (address, role, *one)) for one in named),
            )
        self.values = [
            *(file.counts.total for file in self._files),
            *(value for file in self._own for value in file.named_values()),
        ]
