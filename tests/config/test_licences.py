"""docs/reference/licences.md against the packages that are installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.passes import in_one_pass

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "licences.md").read_text(encoding="utf-8")
KNOWN = {
    "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "MIT", "PSF-2.0",
}  # fmt: skip
"""Licences of what reaches a node: all leave commwatch under its own."""


def listed(title: str) -> dict[str, str]:
    """The licences by package of one table."""
    _, _, section = PAGE.partition(f"## {title}\n")
    table, _, _ = section.partition("\n## ")
    return dict(re.findall(r"^\| (?!package|---)(\S+) \| (.+?) \|", table, re.MULTILINE))


@pytest.mark.torch
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the page is that of Python 3.11; others have other versions"
)
def test_the_page_is_current() -> None:
    """It names what is installed here, and nothing else, as the packages themselves say."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "packaging/licences.py"), "--check"], capture_output=True, text=True
    )

    assert (checked.returncode, checked.stderr) == (0, "")


@in_one_pass("title", ["Always", "With `[kubernetes]`", "torch"])
def test_what_reaches_a_node_is_under_known_licences(title: str) -> None:
    """None that asks something of what uses it, such as the GPL; a new one is looked at before it is listed here."""
    licences = listed(title)

    assert licences
    assert {one for licence in licences.values() for one in re.split(" AND | OR ", licence)} <= KNOWN


def test_every_dependency_is_named() -> None:
    """Those of pyproject.toml stand in the table of their group."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (direct,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    names = {name.lower().replace("_", "-") for name in [*listed("Always"), *listed("torch")]}

    assert set(re.findall(r'"([a-z0-9-]+)', direct)) <= names
