"""Holds what was told over a life against what was broken: right page, place, time, number, end, finding and cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from support.lives.hardware import (
    GROUP_INTERVAL_SECONDS,
    GROUP_WAIT_SECONDS,
    PROBE_CYCLE_SECONDS,
    RATE_SECONDS,
    Wanted,
)
from support.lives.life import Broken, Life, Span, observable
from support.lives.play import Course
from support.lives.told import Alert, Sent
from support.simulated_daemon import STEP_SECONDS

Record: TypeAlias = Mapping[str, Any]

_PAGE_AFTER_SECONDS = 330.0
"""After the repair; what has happened is counted for 5 min."""
_TICKET_AFTER_SECONDS = 3900.0
"""After the repair: counts over an hour."""
_CAUSE_SLACK_SECONDS = 45.0
"""Between what was and when it was read."""
_OF_THE_NODE = {"node", "probe", "pair", "log", "daemon", "process", "setting", "part", "service"}
"""Kinds of component that are no single part of the hardware."""
_MEASURED = {"part", "pair"}
"""Kinds of component that probes blame: they know the place, and not what is broken there."""


@dataclass(frozen=True)
class Miss:
    """Something that was not as it must be."""

    kind: str
    seed: int
    what: str
    """The fault by its kind, or the alert."""
    words: str

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.kind}: seed {self.seed}: {self.words}"


@dataclass
class Score:
    """Of lives."""

    lives: int = 0
    faults: int = 0
    unjudged: int = 0
    """Of these, those that were never observable for as long as it takes to tell of them."""
    right: int = 0
    """Faults with the right page or ticket, place and time."""
    causes: int = 0
    """Claimed in lives with two or three faults: each finding with its likeliest cause, once in a life."""
    causes_right: int = 0
    pages: int = 0
    """Notifications to the receiver of pages."""
    misses: list[Miss] = field(default_factory=list)

    def add(self, other: Score) -> None:
        """Take in the score of further lives."""
        self.lives += other.lives
        self.faults += other.faults
        self.unjudged += other.unjudged
        self.right += other.right
        self.causes += other.causes
        self.causes_right += other.causes_right
        self.pages += other.pages
        self.misses += other.misses

    @property
    def share_right(self) -> float:
        """Of the causes that were claimed where two or three faults were."""
        return self.causes_right / self.causes if self.causes else 1.0

    @property
    def share_told(self) -> float:
        """Of the faults that could be seen for long enough: those with the right alert, place and time."""
        judged = self.faults - self.unjudged
        return self.right / judged if judged else 1.0

    def by_kind(self) -> Mapping[tuple[str, str], list[int]]:
        """Seeds of the misses, by kind of miss and of fault."""
        found: dict[tuple[str, str], list[int]] = {}
        for one in self.misses:
            found.setdefault((one.kind, one.what), []).append(one.seed)
        return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"{self.lives} lives, {self.faults} faults ({self.unjudged} of them too short to be judged): {self.right} "
            f"with the right alert, place and time; causes claimed beside other faults {self.causes}, right "
            f"{self.causes_right} ({self.share_right:.1%}); {self.pages} pages; {len(self.misses)} misses"
        )

    def table(self) -> str:
        """The misses by kind."""
        return "\n".join(
            f"{kind:28} {what:28} {len(seeds):4}  seeds {' '.join(map(str, seeds[:12]))}"
            for (kind, what), seeds in self.by_kind().items()
        )


def judge(life: Life, course: Course, alerts: Sequence[Alert], told: Sequence[Sent]) -> Score:
    """The score of one life."""
    return _Judge(life, course, alerts, told).score()


class _Judge:
    def __init__(self, life: Life, course: Course, alerts: Sequence[Alert], told: Sequence[Sent]) -> None:
        self._life, self._documents, self._alerts, self._told = life, course.documents, alerts, told
        self._score = Score(lives=1, faults=len(life.broken))
        self._score.pages = sum(one.receiver == "page" for one in told)
        self._related = {id(one): _related(life, one) for one in life.broken}

    def score(self) -> Score:
        for one in self._life.broken:
            self._judge_fault(one)
        self._find_false()
        self._find_left_open()
        self._judge_causes()
        return self._score

    def _miss(self, kind: str, what: str, words: str) -> None:
        self._score.misses.append(Miss(kind, self._life.seed, what, words))

    # --- each fault ---

    def _judge_fault(self, broken: Broken) -> None:
        wanted = broken.wanted
        pieces = list(self._pieces(broken))
        if wanted is None or not pieces:
            self._score.unjudged += 1
            return
        before = len(self._score.misses)
        for since, until in pieces:
            if not self._is_told(broken, wanted, since, until):
                break
        else:
            self._judge_documents(broken, wanted, pieces)
        self._score.right += len(self._score.misses) == before
        self._judge_number(broken)
        self._judge_end(broken)

    def _pieces(self, broken: Broken) -> Iterator[Span]:
        """When somebody looks for as long as it takes to tell of it: from, and to."""
        row, blind = broken.row, self._life.blind()
        if row.flaps or row.is_event:
            # A fall that nobody saw does not count, and one on the edge of a pause is of no matter.
            seen = [
                span for span in broken.spans
                if all(span[1] + 5 < begin or span[0] - 5 > end for begin, end in blind)
            ]  # fmt: skip
            needed = 3 if row.flaps else 1
            if len(seen) >= needed:
                since = seen[needed - 1][0]
                pieces = observable((since, since + row.within + GROUP_WAIT_SECONDS), blind)
                yield from (piece for piece in pieces if piece[1] - piece[0] >= row.within)
            return
        for span in broken.spans:
            for since, until in observable((span[0], min(span[1], self._life.seconds)), blind):
                if until - since > row.within + STEP_SECONDS:
                    yield since, until

    def _is_told(self, broken: Broken, wanted: Wanted, since: float, until: float) -> bool:
        """Whether the right alert comes in time; else it is a miss."""
        # A ticket that is enough has the time of a ticket.
        deadline = since + max(broken.row.within, RATE_SECONDS if wanted != "page" else 0.0)
        last = max(until, deadline)
        naming = [one for one in self._alerts if _names(broken, one)]
        grave = [one for one in naming if wanted != "page" or one.severity == "critical"]
        first = min((time for one in grave for time in one.times if since <= time <= last), default=None)
        about = f"{broken.words}, observable from {since:.0f} s"
        if first is None:
            if any(since <= time <= last for one in naming for time in one.times):
                names = sorted({one.name for one in naming if any(since <= time <= last for time in one.times)})
                self._miss("a ticket instead of a page", broken.kind, f"{about}: {', '.join(names)}")
            elif near := sorted(
                {one.name for one in self._near(broken) if any(since <= time <= last for time in one.times)}
            ):
                self._miss("place not named", broken.kind, f"{about}: {', '.join(near)}")
            else:
                self._miss("not told", broken.kind, about)
            return False
        if first + GROUP_WAIT_SECONDS > deadline:
            self._miss(
                "late",
                broken.kind,
                f"{about}: after {first + GROUP_WAIT_SECONDS - since:.0f} s, of {deadline - since:.0f}",
            )
            return False
        sent_at = min(
            (one.time for one in self._told if any(self._alerts[place] in grave for place in one.new)), default=None
        )
        fired = ", ".join(sorted({one.name for one in grave}))
        if sent_at is None:
            self._miss("never sent", broken.kind, f"{about}: {fired} fired, and was silenced")
            return False
        if sent_at > deadline + GROUP_INTERVAL_SECONDS:
            self._miss(
                "sent late", broken.kind, f"{about}: {fired} fired in time, and was sent after {sent_at - since:.0f} s"
            )
            return False
        return True

    def _near(self, broken: Broken) -> Iterator[Alert]:
        """Pages that are of this fault alone, if they do not name its place."""
        yield from (one for place in self._own(broken) if (one := self._alerts[place]).severity == "critical")

    def _judge_documents(self, broken: Broken, wanted: Wanted, pieces: Sequence[Span]) -> None:
        if broken.row.flaps or broken.row.is_event:
            return
        least = {"critical"} if wanted == "page" else {"critical", "warning"}
        said_ok, silent, judged = [], [], 0
        for since, until in pieces:
            for time, document in self._documents:
                if document is None or not since + broken.row.within <= time < until:
                    continue
                judged += 1
                verdict = document["verdict"] or {}
                if verdict.get("word") == "OK":
                    said_ok.append(time)
                if not any(one["severity"] in least and _found(broken, one) for one in document["findings"]):
                    silent.append(time)
        if said_ok:
            self._miss(
                "verdict OK",
                broken.kind,
                f"{broken.words}: {len(said_ok)} of {judged} answers, first at {said_ok[0]:.0f} s",
            )
        elif silent and len(silent) > judged / 10:
            self._miss(
                "no such finding",
                broken.kind,
                f"{broken.words}: {len(silent)} of {judged} answers, first at {silent[0]:.0f} s",
            )

    def _own(self, broken: Broken) -> list[int]:
        """Places of the alerts that are of this fault and of no other."""
        others = [one for one in self._life.broken if one is not broken]
        return [
            place for place, alert in enumerate(self._alerts)
            if self._explains(broken, alert, alert.times[0])
            and not any(self._explains(other, alert, alert.times[0]) for other in others)
        ]  # fmt: skip

    def _judge_number(self, broken: Broken) -> None:
        own = set(self._own(broken))
        pages = [one for one in self._told if one.receiver == "page" and own & set(one.new)]
        told = sorted({self._alerts[place].name for one in pages for place in one.new if place in own})
        alerts = {place for one in pages for place in one.new if place in own}
        # A daemon that was away, or a pause, begins a page again.
        if len(pages) > 1 + len(self._life.blind()):
            self._miss(
                "paged several times", broken.kind, f"{broken.words}: {len(pages)} notifications, {', '.join(told)}"
            )
        elif len(alerts) > 1:
            self._miss("several alerts for one fault", broken.kind, f"{broken.words}: {len(alerts)}, {', '.join(told)}")

    def _judge_end(self, broken: Broken) -> None:
        ends = broken.row.ends
        if ends is None or not broken.is_repaired:
            return
        # What probes say ends with the next one, which comes once nothing stops them any more.
        probed_at = max(
            one.end for one in self._life.broken
            if one is broken or (one.row.probes == "stop" and one.begin <= broken.end + PROBE_CYCLE_SECONDS)
        ) + PROBE_CYCLE_SECONDS  # fmt: skip
        late = {
            alert.name: alert.times[-1] - broken.end
            for alert in (self._alerts[place] for place in self._own(broken))
            if alert.times[-1] > (probed_at if _is_of_probes(alert) else broken.end) + ends
        }
        if late:
            words = ", ".join(f"{name} {after:.0f} s" for name, after in sorted(late.items()))
            self._miss("alert stays", broken.kind, f"{broken.words}: after the repair {words}")

    # --- what nothing explains ---

    def _explains(self, broken: Broken, alert: Alert, since: float) -> bool:
        row = broken.row
        after = _PAGE_AFTER_SECONDS if alert.severity == "critical" else _TICKET_AFTER_SECONDS
        if not broken.begin <= since <= broken.end + after:
            return False
        mentioned = _mentioned(alert)
        if mentioned & self._related[id(broken)] or not broken.struck.place.names:
            return True
        return bool(row.probes) and not mentioned & _parts(self._life)

    def _find_false(self) -> None:
        for alert in self._alerts:
            for since, until in alert.stretches(STEP_SECONDS):
                if not any(self._explains(one, alert, since) for one in self._life.broken):
                    kind = "page" if alert.severity == "critical" else "ticket"
                    is_placed = bool(_mentioned(alert)) or not any(
                        one.begin <= since <= one.end + STEP_SECONDS for one in self._life.broken
                    )
                    kind = f"false {kind}" if is_placed else f"{kind} that names no part"
                    labels = {key: value for key, value in alert.labels.items() if key not in _EVERY_LABEL}
                    self._miss(kind, alert.name, f"{labels} from {since:.0f} to {until:.0f} s; {self._life.words}")
                    break

    def _find_left_open(self) -> None:
        life, (time, document) = self._life, self._documents[-1]
        is_over = all(one.is_repaired and one.row.ends and one.end + one.row.ends <= time for one in life.broken)
        if not is_over or document is None or any(end > time - 120 for _, end in life.blind()):
            return
        late = any(
            one.row.probes and one.end + (one.row.ends or 0.0) + PROBE_CYCLE_SECONDS > time for one in life.broken
        )
        left = sorted({
            one["code"] for one in document["findings"]
            if one["severity"] != "info" and not (late and one["component"]["kind"] in _OF_THE_NODE)
        })  # fmt: skip
        if left:
            kinds = "+".join(sorted(one.kind for one in life.broken))
            self._miss("finding stays", ", ".join(left), f"{kinds}: {life.words}")

    # --- causes ---

    def _judge_causes(self) -> None:
        if len(self._life.broken) < 2:
            return
        judged: dict[tuple[str, ...], tuple[bool, str]] = {}
        for time, document in self._documents:
            for finding in document["findings"] if document is not None else ():
                if not finding["causes"]:
                    continue
                cause = finding["causes"][0]
                key = (finding["code"], finding["component"]["identity"], cause["code"], cause["component"]["identity"])
                if key not in judged:
                    right = any(self._is_cause(one, finding, cause) for one in self._life.broken)
                    judged[key] = right, f"at {time:.0f} s {' '.join(key[:2])} <- {' '.join(key[2:])}"
        for (finding, _, cause, _), (right, words) in judged.items():
            self._score.causes += 1
            self._score.causes_right += right
            if not right:
                self._miss("wrong cause", f"{finding} <- {cause}", f"{words}; {self._life.words}")

    def _is_cause(self, broken: Broken, finding: Record, cause: Record) -> bool:
        """Whether a fault is where the cause is said to be, of that kind, and can have had this effect at that time."""
        effect, blamed, since = finding["component"], cause["component"], finding["since"] - 60.0
        kinds = broken.row.kinds | (_MEASURED if broken.row.probes == "slow" else set())
        if not self._lies_at(broken, blamed) or blamed["kind"] not in kinds:
            return False
        if not broken.begin <= since + _CAUSE_SLACK_SECONDS:
            return False
        if broken.end < since - _CAUSE_SLACK_SECONDS and not broken.row.is_event:
            return False
        return self._lies_at(broken, effect) or (effect["kind"] in _OF_THE_NODE and bool(broken.row.probes))

    def _lies_at(self, broken: Broken, component: Record) -> bool:
        place = broken.struck.place
        if not place.names:
            return component["kind"] in _OF_THE_NODE
        if component["kind"] == "nvlink" and place.link is not None:
            return component["key"] in {f"{name}/{place.link}" for name in place.names} | {
                f"{name}/{link}" for name, link in place.others
            }
        return bool(_addresses(component) & self._related[id(broken)])


_EVERY_LABEL = {"alertname", "severity", "class", "fault", "instance", "job"}
_WORD = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\b(?:mlx5_\d+|ens\w+|enp\w+|bond\d+)\b")
"""PCI addresses, and names of adapters as the simulated nodes have them."""


def _mentioned(alert: Alert) -> set[str]:
    """Parts of the node that an alert names by a label; by its text where no label does."""
    labels = {word for value in alert.labels.values() for word in _WORD.findall(value)}
    return labels or set(_WORD.findall(alert.own_text))


def _is_of_probes(alert: Alert) -> bool:
    """Class C: several results in a row."""
    return alert.labels.get("class") == "C" or not _mentioned(alert)


def _parts(life: Life) -> set[str]:
    preset = life.preset
    names = {one.address for one in preset.devices} | {one.name for one in preset.interfaces}
    return names | {one.device for one in preset.rdma_ports} | {*preset.nvswitches}


def _related(life: Life, broken: Broken) -> set[str]:
    """The part with what lies above it, and the other ends of its links."""
    preset, place = life.preset, broken.struck.place
    names = {*place.names, *(name for name, _ in place.others)}
    names |= {port.pci_address for port in preset.rdma_ports if port.device in names}
    names |= {one.pci_address for one in preset.interfaces if one.name in names}
    above = {parent for name in names for parent in preset.ancestors(name)}
    switches = {*preset.nvswitches} if "nvswitch" in broken.row.kinds else set()
    return names | above | switches


def _names(broken: Broken, alert: Alert) -> bool:
    """Whether somebody who reads the alert knows which part it is."""
    place = broken.struck.place
    words = set(_WORD.findall(f"{' '.join(alert.labels.values())} {alert.own_text}"))
    if not place.names:
        return not _mentioned(alert)
    if place.link is None:
        return bool(words & {*place.names})
    ends = [*((name, place.link) for name in place.names), *place.others]
    return any(name in words and _says_link(alert, link) for name, link in ends)


def _says_link(alert: Alert, link: int) -> bool:
    in_text = re.search(rf"\blinks? (?:[\d, and]*\b)?{link}\b", alert.own_text)
    return alert.labels.get("link") == str(link) or bool(in_text)


def _addresses(record: Record) -> set[str]:
    return {word for text in (record["key"], record["name"], *record["parts"]) for word in _WORD.findall(text)}


def _found(broken: Broken, finding: Record) -> bool:
    """Whether a finding, or its likeliest cause, names the part."""
    place = broken.struck.place
    components = [finding["component"], *(one["component"] for one in finding["causes"][:1])]
    if not place.names:
        return any(one["kind"] in _OF_THE_NODE for one in components)
    names = {*place.names} if place.link is None else {*place.names, *(name for name, _ in place.others)}
    return any(_addresses(one) & names for one in components)
