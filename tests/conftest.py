"""Options and profiles of the suite; leaves out the tests whose programs are not here, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest
from hypothesis import settings

# In CI the same examples each time, however slow the machine: what is new is looked for where someone looks on.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

PROGRAMS = {
    "prometheus": ("prometheus", "promtool", "amtool"),
    "chromium": ("chromium",),
    "systemd": ("systemd-analyze",),
    "openssl": ("openssl",),
    "namespaces": ("ip",),
    "node_exporter": ("prometheus-node-exporter",),
}


def missing(marker: str) -> str:
    """What a marked test needs and this machine lacks; empty if it can run."""
    absent = [name for name in PROGRAMS.get(marker, ()) if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if marker == "namespaces" and not namespaces_allowed():
        return "needs root, and a machine that allows network namespaces"
    return ""


@cache
def namespaces_allowed() -> bool:
    """Whether a namespace can be made; containers often forbid it even to root."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the recorded pages anew, to be read in the diff."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with the reason; pytest's summary lists it."""
    for item in items:
        for marker in PROGRAMS:
            if item.get_closest_marker(marker) is not None and (reason := missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
