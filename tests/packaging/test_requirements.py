"""packaging/requirements*.txt: what packages and images install, held against constraints.txt and pyproject.toml."""

from __future__ import annotations

import hashlib
import re
import runpy
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.passes import in_one_pass

ROOT = Path(__file__).parents[2]
SHIPPED = runpy.run_path(str(ROOT / "packaging/shipped.py"))["shipped"]
LISTS = ("requirements.txt", "requirements-probe.txt", "requirements-build.txt")


def entries(text: str) -> list[tuple[Requirement, list[str]]]:
    """The pinned requirements of a list, each with its options."""
    joined = re.sub(r"#.*", "", text).replace("\\\n", " ")
    lines = [re.split(r"\s+(?=--)", line.strip()) for line in joined.splitlines() if line.strip()]
    return [(Requirement(line[0]), line[1:]) for line in lines]


def versions(text: str) -> dict[tuple[str, str], str]:
    """The version of each name in each of the environments that tell entries apart."""
    return {
        (canonicalize_name(requirement.name), python): str(requirement.specifier)
        for requirement, _ in entries(text)
        for python in ("3.10", "3.11", "3.14")
        if requirement.marker is None
        or requirement.marker.evaluate(
            {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
        )
    }


def needed(lines: list[str]) -> set[str]:
    """What requirements bring here, at any depth, by canonical name."""
    found: set[str] = set()
    waiting = list(lines)
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        key = canonicalize_name(requirement.name)
        if key not in found:
            found.add(key)
            waiting += requires(key) or ()
    return found


def plain_dependencies() -> set[str]:
    """Those of pyproject.toml that no extra brings, by canonical name."""
    lines = [Requirement(line) for line in requires("commwatch") or ()]
    return {str(canonicalize_name(one.name)) for one in lines if one.marker is None}


@in_one_pass("file", LISTS)
def test_each_file_that_is_installed_is_known_by_its_hash_alone(file: str) -> None:
    """One version each, with hashes; no address of a registry, so that a site's mirror serves as well."""
    text = (ROOT / "packaging" / file).read_text(encoding="utf-8")
    assert "://" not in text
    for requirement, options in entries(text):
        assert [each.operator for each in requirement.specifier] == ["=="], requirement
        assert requirement.url is None
        assert options, f"{requirement}: no hash; make requirements"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options), requirement


@in_one_pass("file", LISTS)
def test_a_list_has_the_versions_that_the_tests_ran_with(file: str) -> None:
    """constraints.txt pins them on every Python; if a list differs: make requirements."""
    tested = versions((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    listed = versions((ROOT / "packaging" / file).read_text(encoding="utf-8"))
    differing = {key: (version, tested[key]) for key, version in listed.items() if tested.get(key, version) != version}
    assert differing == {}
    if file != "requirements-probe.txt":  # torch brings CUDA's libraries, which the tests have not
        assert listed.keys() <= tested.keys()


def test_the_lists_hold_what_commwatch_needs() -> None:
    """Neither more nor less than pyproject.toml asks for, at any depth, but torch, which has a list of its own."""
    text = (ROOT / "packaging/requirements.txt").read_text(encoding="utf-8")
    listed = {canonicalize_name(requirement.name): requirement for requirement, _ in entries(text)}
    wanted_lines = SHIPPED(requires("commwatch") or ())
    assert listed.keys() == needed(wanted_lines)
    assert {canonicalize_name(Requirement(line).name) for line in wanted_lines} == plain_dependencies() - {"torch"} | {
        "grpcio", "protobuf",
    }  # fmt: skip
    for line in wanted_lines:
        wanted = Requirement(line)
        if (own := listed.get(canonicalize_name(wanted.name))) is not None:
            (version,) = own.specifier
            assert wanted.specifier.contains(version.version), wanted


@pytest.mark.parametrize(
    ("file", "name"),
    [("requirements-probe.txt", "torch"), ("requirements-build.txt", "hatchling"), ("requirements-build.txt", "pip")],
)
def test_what_probes_and_the_build_need_is_listed(file: str, name: str) -> None:
    """Each list is what one name needs."""
    text = (ROOT / "packaging" / file).read_text(encoding="utf-8")
    assert name in {requirement.name for requirement, _ in entries(text)}


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that gives another file under the same name and version ends the build; so does one without a hash."""
    install = runpy.run_path(str(ROOT / "packaging/build.py"))["install"]
    wheel = tmp_path / "innocent-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("innocent.py", "")
        archive.writestr("innocent-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: innocent\nVersion: 1.0\n")
        archive.writestr(
            "innocent-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("innocent-1.0.dist-info/RECORD", "")
    for name, value in {"INDEX": "1", "FIND_LINKS": str(tmp_path), "CONSTRAINT": ""}.items():
        monkeypatch.setenv(f"PIP_{'NO_' if name == 'INDEX' else ''}{name}", value)
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def build(listed: str) -> list[str]:
        (tmp_path / "list").write_text(listed)
        install(tmp_path / "target", "--require-hashes", "--requirement", tmp_path / "list")
        return [file.name for file in (tmp_path / "target").glob("*.py")]

    for listed in (f"innocent==1.0 --hash=sha256:{'0' * 64}\n", "innocent==1.0\n"):
        with pytest.raises(SystemExit, match=r"MATCH THE HASHES|must have a hash|Hashes are required"):
            build(listed)
    assert not (tmp_path / "target").exists()
    assert build(f"innocent==1.0 --hash=sha256:{right}\n") == ["innocent.py"]


def test_every_installation_of_a_package_asks_for_hashes() -> None:
    """Those of deb and rpm, of the build backend, and of torch in the image; our own wheel is what was just built."""
    program = (ROOT / "packaging/build.py").read_text(encoding="utf-8")
    image = (ROOT / "packaging/image/Dockerfile").read_text(encoding="utf-8")
    lists = re.findall(r'"--requirement", ROOT / "packaging/([\w.-]+)"', program)
    assert lists == ["requirements-build.txt", "requirements.txt"]
    assert len(re.findall(r'"--require-hashes", "--requirement"', program)) == len(lists)
    assert len(re.findall(r"-m pip|pip install", image)) == image.count("pip install --no-cache-dir") == 1
    assert 'TORCH="--require-hashes --requirement /context/packaging/requirements-probe.txt"' in image
