"""The software bill of materials of the self-contained environment, as CycloneDX 1.5 in JSON.

It lists what pip has installed: every distribution with the file that it came from, its licence, and what it needs.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Archives = Mapping[str, Mapping[str, str]]
"""By canonical name: the files that were installed, each with its SHA-256."""


def installed_archives(report: str) -> Iterator[tuple[str, str, str]]:
    """What ``pip install --report`` says was installed: canonical name, file and SHA-256.

    Raises:
        KeyError: the report has no SHA-256 for a file.
    """
    for item in json.loads(report)["install"]:
        origin = item["download_info"]
        name = canonicalize_name(item["metadata"]["name"])
        yield name, origin["url"].rpartition("/")[2], origin["archive_info"]["hashes"]["sha256"]


def bill_of_materials(
    folder: Path, archives: Archives, extras: Sequence[str], pythons: Sequence[str], machine: str, epoch: int
) -> str:
    """The document: the same text for the same environment.

    Args:
        folder: site-packages of the environment, with commwatch in it.
        archives: of every distribution in the folder.
        extras: of commwatch that are installed.
        pythons: that the environment is for.
        machine: that it is for, as ``uname -m`` names it.
        epoch: its date, in seconds since 1970.
    """
    found = {str(canonicalize_name(each.name)): each for each in distributions(path=[str(folder)])}
    components = {name: _component(found[name], archives[name]) for name in sorted(found)}
    own = components.pop("commwatch") | {"type": "application"}
    environments = [
        {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine, "extra": extra}
        for python in pythons
        for extra in ("", *extras)
    ]
    wanted = {name: _needed(found[name], environments) & found.keys() for name in found}
    everything = {**components, "commwatch": own}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(everything, sort_keys=True))}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": own,
            "properties": [
                *({"name": "commwatch:python", "value": python} for python in pythons),
                {"name": "commwatch:machine", "value": machine},
            ],
        },
        "components": list(components.values()),
        "dependencies": [
            {
                "ref": everything[name]["bom-ref"],
                "dependsOn": [everything[needed]["bom-ref"] for needed in sorted(wanted[name])],
            }
            for name in sorted(everything)
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _component(distribution: Distribution, files: Mapping[str, str]) -> dict[str, Any]:
    name, version = canonicalize_name(distribution.name), distribution.version
    url = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": distribution.name,
        "version": version,
        "description": _given(distribution, "Summary"),
        "licenses": _licences(distribution),
        "purl": url,
        "externalReferences": [
            {"type": "distribution", "url": file, "hashes": [{"alg": "SHA-256", "content": files[file]}]}
            for file in sorted(files)
        ],
    }


def _licences(distribution: Distribution) -> list[dict[str, Any]]:
    """As the authors give it: an SPDX expression, otherwise a name."""
    if expression := _given(distribution, "License-Expression"):
        return [{"expression": expression}]
    named = [_given(distribution, "License")]
    if not named[0] or "\n" in named[0]:  # some put the whole text there
        classifiers = distribution.metadata.get_all("Classifier") or ()
        named = [entry.rpartition(" :: ")[2] for entry in classifiers if entry.startswith("License ::")]
    return [{"license": {"name": name}} for name in named]


def _given(distribution: Distribution, key: str) -> str:
    return str((distribution.metadata.get_all(key) or [""])[0])


def _needed(distribution: Distribution, environments: Iterable[dict[str, str]]) -> set[str]:
    """Canonical names of what it needs in any of the environments."""
    requirements = map(Requirement, distribution.requires or ())
    return {
        canonicalize_name(one.name)
        for one in requirements
        if one.marker is None or any(map(one.marker.evaluate, environments))
    }
