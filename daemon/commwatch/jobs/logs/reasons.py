"""Words for a failure that any program uses, for lines that no rule knows: what they prove, and the next step.

Most are the texts of errno(3). They say less than a message with its own row, and count only where a log names no
other cause. Words such as "invalid" and "unreachable" are none of them: what they name differs too much for a step.
"""

from __future__ import annotations

import re
from typing import Final

from commwatch.jobs.logs.categories import About, Side
from commwatch.jobs.logs.meanings import FULL, PORT_TAKEN


def _reason(says: str, about: About) -> tuple[re.Pattern[str], About]:
    return re.compile(f"(?i){says}"), about


def _said(side: Side, says: str, next_step: str) -> About:
    return About(side, f"A line says that {says}; no line names another cause.", next_step)


_REASONS: Final = (
    _reason(r"address already in use|\bEADDRINUSE\b", PORT_TAKEN),
    _reason(r"no space left on device|disk quota exceeded", FULL),
    _reason(r"cannot allocate memory|out of memory|\bENOMEM\b", _said(
        "unknown", "no memory was to be had",
        "See of which kind: memory of the host (free -g, memory.max of the job's cgroup), locked memory (ulimit -l), "
        "shared memory (df -h /dev/shm), or that of the GPU (nvidia-smi).")),
    _reason(r"permission denied|not permitted|\bEACCES\b|\bEPERM\b", _said(
        "config", "a process may not do what it tried",
        "Compare the user with the rights of what the line names, on the node and in the container; a container may "
        "lack a capability or a device (--cap-add, --device).")),
    _reason(r"no such (?:file|device)|\bnot found\b|not installed|\bENOENT\b|"
            r"(?:cannot|could not|couldn't|unable to|failed to) (?:find|locate|open|load)\b", _said(
        "config", "something is not there or cannot be opened: a file, a device, a library or a program",
        "Look for what it names on the node and in the container: is it installed, mounted, and in PATH or "
        "LD_LIBRARY_PATH of the job?")),
    _reason(r"\b(?:version|abi)\b.{0,80}(?:mismatch|not match|disagree|incompatible|unsupported|not support)|"
            r"(?:mismatch|incompatible|unsupported|not support|disagree).{0,60}\b(?:version|abi)\b", _said(
        "config", "the versions of two parts do not go together",
        "Compare the versions of what it names on host and container and on all nodes; take both from one release.")),
    _reason(r"not supported|unsupported|not support\b|not implemented", _said(
        "config", "hardware, driver or library lacks what the program asks for",
        "Compare what it names with the hardware and with the versions of driver and library; switch it off in the "
        "program if they do not have it.")),
)  # fmt: skip


_WENT_ON: Final = re.compile(
    r"(?i)\b(?:fall(?:s|ing)? ?back|fallback|ignor(?:ed|ing)|retry(?:ing)?|continu(?:es|ing)|skipp(?:ed|ing)|"
    r"instead|from scratch)\b"
)
"""With these a line tells how the program went on, so it is not why it ended."""


def reason_in(text: str) -> About | None:
    """What a line's words prove about a failure; None for a line without such words, and where the program went on."""
    if _WENT_ON.search(text) is not None:
        return None
    return next((about for says, about in _REASONS if says.search(text) is not None), None)
