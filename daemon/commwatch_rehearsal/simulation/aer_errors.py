"""The PCIe errors that the kernel distinguishes (AER): names and bits as in drivers/pci/pcie/aer.c."""

from __future__ import annotations

from collections.abc import Mapping

CORRECTABLE = (
    (0, "RxErr"), (6, "BadTLP"), (7, "BadDLLP"), (8, "Rollover"), (12, "Timeout"), (13, "NonFatalErr"),
    (14, "CorrIntErr"), (15, "HeaderOF"),
)  # fmt: skip
"""Bit of the status register and name of each correctable error, as drivers/pci/pcie/aer.c has them."""
UNCORRECTABLE = (
    (0, "Undefined"), (4, "DLP"), (5, "SDES"), (12, "TLP"), (13, "FCP"), (14, "CmpltTO"), (15, "CmpltAbrt"),
    (16, "UnxCmplt"), (17, "RxOF"), (18, "MalfTLP"), (19, "ECRC"), (20, "UnsupReq"), (21, "ACSViol"),
    (22, "UncorrIntErr"), (23, "BlockedTLP"), (24, "AtomicOpBlocked"), (25, "TLPBlockedErr"),
    (26, "PoisonTLPBlocked"),
)  # fmt: skip
"""The same of the errors that are nonfatal or fatal."""

SEVERITIES: Mapping[str, tuple[tuple[int, str], ...]] = {
    "correctable": CORRECTABLE,
    "nonfatal": UNCORRECTABLE,
    "fatal": UNCORRECTABLE,
}
"""The errors of each severity."""

ERRORS = tuple(name for _, name in (*CORRECTABLE, *UNCORRECTABLE))
"""Every name."""
