"""Prints the lines of the kernel log that are about GPUs, PCIe and network adapters; run as a child with a deadline."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from commwatch.sources.kernel_log import KernelLogDevice, LogDevice
from commwatch.sources.kernel_log_lines import parse_record

_MOST_LINES = 5000
_MOST_RECORDS = 500_000
"""A log has some ten thousand; where it is written faster than it is read, there is an end all the same."""
_OF_INTEREST = re.compile(
    r"NVRM|\bS?Xid\b|nvidia|nvlink|\bAER\b|pcieport|PCIe Bus Error|\bmlx[45]_|bnxt_en|\bi40e\b|\bice\b|\bena\b|"
    r"infiniband|\bIOMMU\b|\bDMAR\b",
    re.IGNORECASE,
)

_PROCESS_NAME = re.compile(r"\bname=(?:(?:\\x[0-9a-f]{2}|[^\n]){0,15}(?=, )|[^,\n]*)")
"""In the text of an Xid: the program that ran. Its name has at most 15 bytes, a comma among them too."""
_CRASHED = re.compile(
    r"(traps: |).{1,60}?(\[[0-9]{1,10}\]:? (?:segfault|general protection|trap |bad frame|unhandled).*)"
)
"""The line of a program that crashed, such as in a library of the driver: its name comes first."""
_PROGRAM = re.compile(r" in (?!lib).*(?=\[)")
"""There, the file where it crashed, unless that is a library."""


def lines_of_interest(log: LogDevice) -> Iterator[str]:
    """The last lines of the kernel's own that are of interest, each with the seconds since the boot.

    Raises:
        OSError: the log cannot be read.
    """
    found: deque[str] = deque(maxlen=_MOST_LINES)
    for _ in range(_MOST_RECORDS):
        try:
            record = log.read()
        except BrokenPipeError:
            continue  # records were overwritten meanwhile; the next one is the oldest that is left
        if record is None:
            break
        parsed = parse_record(record)
        # Lines that programs wrote into the log may be about anything.
        if parsed is not None and parsed.from_kernel and _OF_INTEREST.search(parsed.text):
            found.append(f"[{parsed.microseconds / 1e6:14.6f}] {_without_programs(parsed.text)}")
    yield from found


def _without_programs(text: str) -> str:
    if crashed := _CRASHED.fullmatch(text):
        text = f"{crashed[1]}(left out){_PROGRAM.sub(' in (left out)', crashed[2])}"
    return _PROCESS_NAME.sub("name=(left out)", text)


def main(arguments: Sequence[str], open_log: Callable[[str], LogDevice] = KernelLogDevice) -> int:
    """``PATH`` of the log; 1 where it cannot be read."""
    try:
        log = open_log(arguments[0])
        try:
            for line in lines_of_interest(log):
                sys.stdout.write(f"{line}\n")
        finally:
            log.close()
    except OSError as error:
        sys.stdout.write(f"{arguments[0]}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
