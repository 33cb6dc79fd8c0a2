"""The verdict on the node, in one word and one line; every view of commwatch shows this one and makes none; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from commwatch.findings.finding import Cause, Finding, Severity
from commwatch.units import format_seconds

if TYPE_CHECKING:
    from commwatch.findings.api_documents import FindingsDocument

Word: TypeAlias = Literal["OK", "Warning", "Critical", "Unknown"]
"""As severe as the most severe open finding; information is OK; Unknown: what is open now cannot be said."""

Because: TypeAlias = Literal[
    "no_daemon",  # none runs with this state directory
    "no_answer",  # one runs, and did not answer in time or not in a form that is known
    "not_looked_yet",  # it has just started
    "stale",  # its last evaluation is too old, or did not see any more what would call for a drain
    "paused",
    "simulated",
    "starved",  # the node is too short of CPU or memory: what did not answer in time is not judged
    "not_read",  # a rule fails or a source has no current reading, so that nothing can be ruled out
    "no_gpu",  # none is known, so that there is no communication to judge
    "inventory",  # what should be here was learned only: what lacked on the first day counts as whole
    "no_result",  # the preflight has no result that is young enough, or not all that it needs to judge one
    "error",  # of this command: its use, its configuration, a defect
]
"""Why something is unknown: values of the label ``reason`` of ``commwatch_healthcheck_unknown_total``."""

WORDS: Final[Mapping[Severity, Word]] = {"critical": "Critical", "warning": "Warning", "info": "OK"}
"""By severity of the most severe open finding, which is that of its alert."""

LOOK_SECONDS: Final = 60.0
"""An older evaluation of the daemon's rules is not current; they run every 10 s."""
_UNREAD_FUNCTIONS: Final = "; not read: what virtual functions of RDMA adapters send and lose"
FUTURE_SECONDS: Final = 5.0
"""An evaluation further ahead of our clock than this has a time without meaning."""


class Verdict(msgspec.Struct, frozen=True):
    """The state of the node in one word and one line."""

    word: Word
    line: str
    """Without the word: the first cause to check, and how many others there are."""
    because: Because | None = None
    """Why it is unknown."""


class UnreadSource(msgspec.Struct, frozen=True):
    """A source of this node without a current reading."""

    source: str
    """``nvml``."""
    seconds: float | None
    """Since anything was read of it; None: nothing was since the daemon started or resumed."""
    why: str
    """The last failure, in words; empty if it is not known."""
    lists_parts: bool = True
    """Whether it shows which parts the node has; else it adds to another source."""

    @property
    def words(self) -> str:
        """``nvml gave no reading for 31 s (nvmlDeviceGetPciInfo: Unknown Error (NVML code 999))``."""
        since = "has given no reading yet" if self.seconds is None else (
            f"gave no reading for {format_seconds(self.seconds)}")  # fmt: skip
        return f"{self.source} {since}" + (f" ({self.why})" if self.why else "")


def verdict_of(document: FindingsDocument, now: float, max_age: float = LOOK_SECONDS) -> Verdict:
    """The verdict.

    Args:
        document: what the daemon said.
        now: seconds since 1970.
        max_age: seconds beyond which an evaluation says nothing of now.
    """
    grave = document.grave
    if doubt := _doubt(document, now, max_age):
        because, line = doubt
        return Verdict("Unknown", f"{line}; before: {and_more(grave)}" if grave else line, because)
    # A warning does not bound how bad parts are that nothing reads; something critical is certain.
    is_blind = any(one.lists_parts for one in document.unread) and not document.unanswered
    if grave and is_blind and grave[0].severity != "critical":
        return Verdict("Unknown", f"{document.unread_words}; open: {and_more(grave)}", "not_read")
    if grave:
        return Verdict(WORDS[grave[0].severity], and_more(grave))
    if document.failing_rules:
        line = f"a rule fails ({document.failing_rules[0]}), so that not everything is looked for"
        return Verdict("Unknown", line, "not_read")
    if document.unanswered:
        first, *others = document.unanswered
        more = f" and {len(others)} more" if others else ""
        return Verdict("Unknown", f"the node is starved: {first}{more} had no answer in time, not judged", "starved")
    if document.unread:
        return Verdict("Unknown", document.unread_words, "not_read")
    if not document.has_gpus:
        return Verdict("Unknown", "no GPU is read at present", "no_gpu")
    is_split = any(one.code == "rdma_functions_unread" for one in document.findings)
    return Verdict("OK", f"no warning or critical finding{_UNREAD_FUNCTIONS if is_split else ''}")


def _doubt(document: FindingsDocument, now: float, max_age: float) -> tuple[Because, str] | None:
    """The reason why the open findings do not show the node's current state."""
    if document.maintenance is not None:
        return "paused", f"the daemon is paused ({document.maintenance})"
    if document.looked_at is None:
        return "not_looked_yet", "the daemon has just started and has not looked at the node yet"
    age = now - document.looked_at
    if age < -FUTURE_SECONDS:
        return "stale", f"the daemon's last look is {format_seconds(-age)} ahead of the clock"
    if age > max_age:
        return "stale", f"the daemon's last look is {format_seconds(age)} old, more than {format_seconds(max_age)}"
    return None


def and_more(faults: Sequence[Finding | Cause]) -> str:
    """``NVLink is down: GPU0 link 3 (0000:17:00.0/3); and 2 more``: findings with the same leading cause count once, as
    every view shows them."""
    others = len({one.lead.key if isinstance(one, Finding) else one.key for one in faults}) - 1
    return f"{faults[0].words}; and {others} more" if others else faults[0].words
