"""Runbooks: their commands exist and find something, in an order that works; their numbers are those of the rules."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from commwatch.config.assets import asset
from commwatch.jobs.logs.categories import SIDES
from commwatch_exporters.catalogue import CATALOGUE
from support.command_line import PARSER
from support.facts import events_told
from support.passes import in_one_pass

RUNBOOKS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(asset("alerts/runbooks").glob("*.md"))}
NOT_ON_A_NODE = {
    "CommwatchWatchdog", "CommwatchFaultOnManyNodes", "CommwatchFaultOnMoreNodes", "CommwatchSoftwareFaultOnManyNodes",
}  # fmt: skip
"""Their diagnosis begins where Prometheus runs."""

_METRICS = re.compile(r"28029/metrics \| grep (?:-E )?('[^']+'|\S+)")
_OF_ONE_DEVICE = re.compile(r'\.\*device="[A-Z]+"')

_CHANGES = re.compile(
    r"(?<![-\w])(re)?(start|stop|set|load)\b|(?<![-\w])(rm|rmmod|modprobe|kill)\b|--gpu-reset| -R\b|> "
)


def commands(page: str) -> Iterator[str]:
    """Lines of its blocks of commands, and commwatch's own commands in its text, without remarks."""
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        yield from (line.split("  #")[0].strip() for line in block.splitlines())
    yield from (re.sub(r"\s+", " ", one) for one in re.findall(r"`(commwatch [^`]+)`", page))


def alternatives(pattern: str) -> Iterator[str]:
    """Each alternative of a pattern of grep by itself: ``a_(b|c)|d`` is a_b, a_c and d."""
    for part in re.split(r"\|(?![^(]*\))", pattern):
        found = re.fullmatch(r"(.*?)\(([^)]*)\)(.*)", part)
        yield from (f"{found[1]}{one}{found[3]}" for one in found[2].split("|")) if found else (part,)


@in_one_pass("name", RUNBOOKS)
def test_what_a_runbook_looks_for_is_on_the_page(name: str) -> None:
    """Each part of a pattern by which it picks metrics finds at least one that exists."""
    names = [metric.name for metric in CATALOGUE.values()]
    for found in _METRICS.findall(RUNBOOKS[name]):
        for one in alternatives(_OF_ONE_DEVICE.sub("", found.strip("'"))):
            # A label's value stands behind the name: what is left of it must find the metric.
            assert any(re.search(one.split(".*")[0], metric) for metric in names), one


@in_one_pass("name", RUNBOOKS)
def test_commwatch_understands_the_commands_of_a_runbook(name: str) -> None:
    """Subcommands and flags are those that the program has."""
    for command in commands(RUNBOOKS[name]):
        if command.startswith("commwatch "):
            PARSER.parse_args(shlex.split(command)[1:])


@in_one_pass("name", sorted(RUNBOOKS.keys() - NOT_ON_A_NODE))
def test_the_diagnosis_begins_with_commwatch(name: str) -> None:
    """What watches the node is asked first."""
    first = next(commands(RUNBOOKS[name]))

    assert "commwatch" in first or "28029" in first


@in_one_pass("name", RUNBOOKS)
def test_commwatch_lets_go_of_a_gpu_before_it_is_reset(name: str) -> None:
    """A GPU that a process holds cannot be reset: a pause stands in the list before the reset, and its end after it."""
    steps = RUNBOOKS[name].partition("## Mitigation")[2].partition("\n## ")[0]
    if re.search(r"\breset (?:the GPU|all|both|that)|gpu-reset", steps):
        paused, _, after = steps.partition("`commwatch pause --for 1h --reason re")

        assert "gpu-reset" not in paused
        assert re.search(r"`commwatch\s+resume`", after)


@in_one_pass("name", RUNBOOKS)
def test_only_the_mitigation_changes_something(name: str) -> None:
    """Commands of the diagnosis read; a probe, which uses the GPUs, is announced."""
    diagnosis = RUNBOOKS[name].partition("## Diagnosis")[2].partition("\n## ")[0]
    listed = list(commands(diagnosis))

    assert "Read-only" in diagnosis
    assert ("except the probe" in diagnosis) == any(command.startswith("commwatch probe") for command in listed)
    for command in listed:
        bare = re.sub("""'[^']*'|"[^"]*\"""", "", command)
        assert _CHANGES.search(bare) is None, command


@in_one_pass(
    "name, code",
    [
        ("CommwatchXidFabric", "xid_fabric"),
        ("CommwatchXidGpu", "xid_gpu"),
        ("CommwatchSxidFatal", "sxid_fatal"),
        ("CommwatchSxidWarning", "sxid_warning"),
    ],
)
def test_each_number_that_fires_is_explained(name: str, code: str) -> None:
    """Whoever is woken by an Xid or an SXid finds it on the page."""
    page = RUNBOOKS[name]
    ranges = re.findall(r"\b(\d+) to (\d+)\b", page)
    named = set(re.findall(r"\b\d+\b", page)) | {
        str(one) for first, last in ranges for one in range(int(first), int(last) + 1)
    }

    assert events_told(code).keys() <= named


def test_each_category_that_fires_is_explained() -> None:
    """The same for the errors of NCCL's log."""
    hardware = {category for category, side in SIDES.items() if side in ("network", "nvlink", "gpu", "host")}

    assert {one for one in hardware if not re.search(rf"\b{one}\b", RUNBOOKS["CommwatchNcclErrors"])} == set()
