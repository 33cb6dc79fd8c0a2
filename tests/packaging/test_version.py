"""The version that dpkg and rpm see."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BUILD = runpy.run_path(str(Path(__file__).parents[2] / "packaging/build.py"))


@pytest.mark.parametrize(
    ("version", "packaged"),
    [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0~rc1"), ("0.2.0b2", "0.2.0~b2"), ("0.2.0.dev3", "0.2.0~dev3")],
)
def test_a_candidate_is_older_than_its_release(version: str, packaged: str) -> None:
    """Both order what follows a tilde before the end of the version."""
    assert BUILD["package_version"](version) == packaged
