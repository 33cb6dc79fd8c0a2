"""A release: the same bytes from two checkouts, complete, and its bill of materials true and valid."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("git", "dpkg-deb", "rpmbuild", "sha256sum")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, NEEDED)), reason=f"needs {', '.join(NEEDED)}; apt-get install git rpm"
)


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=folder, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def commit() -> str:
    """The last commit; others may follow while the tests run."""
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made from a clone, not from an archive")
    return run("git", "rev-parse", "HEAD").strip()


@pytest.fixture(scope="module")
def release(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make release`` fills."""
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "packaging/release.py", "--commit", commit, "--output", folder)
    return folder


@pytest.fixture(scope="module")
def materials(release: Path) -> dict[str, Any]:
    """The bill of materials."""
    file = next(release.glob(f"*.{platform.machine()}.cdx.json"))
    read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return read


def test_another_checkout_gives_the_same_bytes(release: Path, commit: str, tmp_path: Path) -> None:
    """Of the same commit elsewhere, later, with another umask and time zone."""
    run("git", "clone", "--quiet", ROOT, tmp_path / "elsewhere")
    run(
        "sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "packaging/release.py", "--commit", commit,
        "--output", tmp_path / "again", folder=tmp_path / "elsewhere", TZ="Asia/Tokyo",
    )  # fmt: skip
    first = {file.name: file.read_bytes() for file in release.iterdir()}
    again = {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()}
    assert first.keys() == again.keys()
    assert [name for name, content in first.items() if content != again[name]] == []


def test_everything_has_the_version_of_the_commit_and_its_sum(release: Path, commit: str) -> None:
    """The version stands in one file; the sums are those of sha256sum."""
    source = run("git", "show", f"{commit}:daemon/commwatch/__init__.py")
    (version,) = re.findall(r'__version__ = "(.+)"', source)
    kinds = {
        file.name.replace(version, "VERSION", 1).replace("commwatch", "", 1).lstrip("_-") for file in release.iterdir()
    }
    fixed = {kind for kind in kinds if not kind.endswith((".deb", ".rpm"))}
    assert fixed == {
        "VERSION.tar.gz", "VERSION-py3-none-any.whl", "SHA256SUMS", "VERSION.x86_64.cdx.json",
        "VERSION.aarch64.cdx.json",
    }  # fmt: skip
    assert kinds - fixed == {
        "VERSION_amd64.deb", "VERSION_arm64.deb", "VERSION-1.x86_64.rpm", "VERSION-1.aarch64.rpm",
    }  # fmt: skip
    checked = run("sha256sum", "--check", "--strict", "SHA256SUMS", folder=release).splitlines()
    assert len(checked) == 8


def test_a_tag_of_another_version_is_refused(commit: str, tmp_path: Path) -> None:
    """Before anything is packed that would carry the wrong name."""
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", "--no-tags", ROOT, clone)
    run("git", "tag", "v99.0", commit, folder=clone)
    refused = subprocess.run(
        [sys.executable, "packaging/release.py", "--commit", commit, "--output", tmp_path / "dist"],
        capture_output=True, text=True, cwd=clone,
    )  # fmt: skip
    assert refused.returncode == 1
    assert f"{commit} has the tag v99.0" in refused.stderr
    assert not list((tmp_path / "dist").iterdir())


def test_the_sdist_holds_the_commit(release: Path, commit: str, tmp_path: Path) -> None:
    """Every file of the commit with its content and mode, links as links, and no other but the metadata."""
    (sdist,) = release.glob("*.tar.gz")
    run("tar", "--extract", "--file", sdist, "--strip-components=1", folder=tmp_path)
    (tmp_path / "PKG-INFO").unlink()
    run("git", "init", "--quiet", folder=tmp_path)
    run("git", "add", "--all", "--force", folder=tmp_path)
    assert run("git", "write-tree", folder=tmp_path) == run("git", "rev-parse", f"{commit}^{{tree}}")


def test_the_bill_of_materials_is_what_the_package_installs(
    release: Path, materials: dict[str, Any], tmp_path: Path
) -> None:
    """Each distribution of the deb is a component, by a file whose hash is in the list; each needs what it says."""
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    deb = next(release.glob(f"*_{names[platform.machine()]}.deb"))
    run("dpkg-deb", "--extract", deb, tmp_path)
    metadata = [
        file.read_text(encoding="utf-8")
        for file in tmp_path.glob("opt/commwatch/lib/site-packages/*.dist-info/METADATA")
    ]
    installed = {
        (re.findall(r"^Name: (.+)$", text, re.M)[0], re.findall(r"^Version: (.+)$", text, re.M)[0]) for text in metadata
    }
    own = materials["metadata"]["component"]
    components = materials["components"]
    assert {(each["name"], each["version"]) for each in [own, *components]} == installed
    assert all(each["licenses"] for each in [own, *components])

    allowed = (ROOT / "packaging/requirements.txt").read_text(encoding="utf-8")
    for component in components:
        assert component["externalReferences"], component["name"]
        for archive in component["externalReferences"]:
            assert f"--hash=sha256:{archive['hashes'][0]['content']}" in allowed, archive
    (wheel,) = release.glob("*.whl")
    assert run("sha256sum", wheel).split()[0] == own["externalReferences"][0]["hashes"][0]["content"]

    needs = {entry["ref"]: entry["dependsOn"] for entry in materials["dependencies"]}
    assert {ref for refs in needs.values() for ref in refs} == {each["bom-ref"] for each in components}


def test_the_bill_of_materials_is_valid(release: Path, tmp_path: Path) -> None:
    """Against the published schema of CycloneDX 1.5, by their library."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "cyclonedx-python-lib[json-validation]"],
        capture_output=True, text=True, env={**os.environ, "PIP_CONSTRAINT": ""},
    )  # fmt: skip
    if installed.returncode:
        pytest.skip(f"cyclonedx-python-lib cannot be installed: {installed.stderr[-200:]}")
    file = next(release.glob("*.aarch64.cdx.json"))
    code = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read()) and "not valid")
"""
    run(python, "-c", code, file)
    broken = tmp_path / "broken.json"
    broken.write_text(file.read_text(encoding="utf-8").replace('"SHA-256"', '"SHA256"'), encoding="utf-8")
    with pytest.raises(AssertionError, match="not valid"):
        run(python, "-c", code, broken)
