"""The version: what dpkg and rpm see, and that it stands in one place."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from commwatch import __version__
from support.passes import in_one_pass

ROOT = Path(__file__).parents[2]
BUILD = runpy.run_path(str(ROOT / "packaging/build.py"))


@in_one_pass(
    "version, packaged",
    [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0~rc1"), ("0.2.0b2", "0.2.0~b2"), ("0.2.0.dev3", "0.2.0~dev3")],
)
def test_a_candidate_is_older_than_its_release(version: str, packaged: str) -> None:
    """Both order what follows a tilde before the end of the version."""
    assert BUILD["package_version"](version) == packaged


@in_one_pass(
    "file, pattern, places",
    [
        ("packaging/helm/commwatch/Chart.yaml", r"^(?:appV|v)ersion: (\S+)$", 2),
        ("packaging/kubernetes/kustomization.yaml", r"newTag: (\S+)$", 1),
        ("packaging/kubernetes/commwatch.yaml", r"image: \"commwatch:(\S+)\"$", 1),
    ],
)
def test_files_that_cannot_read_the_version_repeat_that_of_the_program(file: str, pattern: str, places: int) -> None:
    """It is changed in daemon/commwatch/__init__.py, then here; `make chart` renders the manifests."""
    assert re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M) == [__version__] * places


def test_the_changelog_begins_with_this_version_or_what_follows_it() -> None:
    """A version without a section could not say what a site has to follow."""
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert __version__ in [section.strip("[]") for section in sections[:2]] or sections[0] == "Unreleased"
