"""Meaning of Xids and SXids, and the advice: data/xid.yaml and data/sxid.yaml, read when first needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from commwatch.config.yaml_file import read_shipped
from commwatch.readings import HardwareEvent
from commwatch.sources.adapter_lines import ADAPTER_EVENTS
from commwatch.sources.kernel_log_lines import (
    FALLEN_OFF_BUS,
    GSP_ERRORS_LIMITED,
    INIT_FAILED,
    NVLINK_DETECTION_FAILED,
    UNREADABLE,
)

LINK_XIDS: Final = "74|136|14[4-9]|150|155"
"""Xids of NVLink, of those that have an alert: a regular expression, as alerts need it; so is the next."""
LINK_SXIDS: Final = "20034|22012"
"""SXids by which an NVSwitch reports that a link went down; each other one has its own meaning."""

_DATA = Path(__file__).resolve().parents[1] / "data"


class Meaning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    meaning: str
    component: Literal["nvlink", "nvswitch", "pcie", "gpu", "memory", "driver", "application", "adapter"]
    severity: Literal["critical", "warning", "info"]
    advice: str
    action: str = ""
    """Of an Xid: the immediate action in NVIDIA's Xid catalogue; empty where it was not established."""
    fabric: bool = False
    """Whether it bears on the paths between GPUs."""

    @property
    def cure(self) -> str:
        """The advice for an event that its line does not call nonfatal, where the advice tells the two apart."""
        fatal = self.advice.partition("Fatal: ")[2]
        return fatal[:1].upper() + fatal[1:] if fatal else self.advice


_MESSAGES = {
    FALLEN_OFF_BUS: Meaning(
        name="GPU has fallen off the bus", component="pcie", severity="critical", fabric=True,
        meaning="The driver cannot reach a GPU over PCIe any more; an Xid 79 may be missing.", advice="As for Xid 79.",
    ),
    GSP_ERRORS_LIMITED: Meaning(
        name="GSP errors are no longer all logged", component="driver", severity="critical",
        meaning="The GPU's own processor failed to answer several times; of further errors 1 in 30 is logged.",
        advice="As for Xid 119: drain the node; once it is free, run commwatch pause and reset the GPU.",
    ),
    INIT_FAILED: Meaning(
        name="GPU initialisation failed", component="driver", severity="critical",
        meaning="The driver could not start a GPU (RmInitAdapter failed); each program that opens the GPU tries again.",
        advice="Look for the GPU in nvidia-smi -L: if it lacks there, drain the node; once it is free, power cycle it.",
    ),
    UNREADABLE: Meaning(
        name="Xid or SXid of an unknown form", component="driver", severity="warning",
        meaning="The line begins as an Xid or SXid and has a form that this version does not know.",
        advice="Read the line; report it, so that the form becomes known.",
    ),
    NVLINK_DETECTION_FAILED: Meaning(
        name="NVLink detection failed", component="nvlink", severity="warning", fabric=True,
        meaning="The driver could not find out which NVLinks have another end.",
        advice="Look at commwatch_nvlink_link_state; drain the node; once it is free, run commwatch pause and reset "
        "all GPUs and NVSwitches together.",
    ),
}  # fmt: skip


def _of_adapter(code: str) -> Meaning | None:
    known = ADAPTER_EVENTS.get(code)
    if known is None:
        return None
    return Meaning(
        name=code.replace("_", " "),
        meaning=f"Of a network adapter: {known.meaning}.",
        component="adapter",
        severity=known.gravity,
        advice="Look at the ports of the adapter, and at the kernel log around this line.",
    )


@cache
def meanings(kind: Literal["xid", "sxid"]) -> dict[int, Meaning]:
    """All meanings of Xids or SXids, by number."""
    return read_shipped(_DATA / f"{kind}.yaml", dict[int, Meaning])


def meaning_of(event: HardwareEvent) -> Meaning | None:
    """The meaning of an event; None if its code is not known."""
    if event.kind == "message":
        return _MESSAGES.get(event.code)
    if event.kind == "adapter":
        return _of_adapter(event.code)
    return meanings(event.kind).get(int(event.code)) if event.code.isdigit() else None
