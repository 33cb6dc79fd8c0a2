"""Renders the Helm chart with its defaults into packaging/kubernetes; with --check needs no helm."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "packaging/helm/commwatch"
MANIFESTS = {
    "commwatch.yaml": ("serviceaccount", "configmap", "service", "daemonset"),
    "podmonitor.yaml": ("monitor",),
}
"""Each file of packaging/kubernetes that is rendered, and its templates."""
TARGET = ROOT / "packaging/kubernetes"
OPTIONS = ("--namespace=commwatch", "--set=image.repository=commwatch,monitor.kind=PodMonitor")


def digest() -> str:
    """Of all of the chart but its rules and dashboards, which no manifest has."""
    every = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and CHART / "files" not in path.parents:
            every.update(f"{path.relative_to(CHART)}\n".encode() + path.read_bytes())
    return every.hexdigest()[:16]


def header() -> str:
    """The first line of each manifest."""
    return f"# Rendered by `make chart` from packaging/helm/commwatch, digest {digest()}; change the chart.\n"


def helm() -> str:
    """The program: beside this interpreter, else on the PATH.

    Raises:
        SystemExit: there is none.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if (found := shutil.which("helm", path=path)) is None:
        raise SystemExit("there is no helm: scripts/get-helm PYTHON FOLDER, with a FOLDER of the PATH")
    return found


def render(templates: tuple[str, ...]) -> str:
    """What helm makes of templates with the chart's defaults, less the label that says that helm manages it."""
    shown = [f"--show-only=templates/{name}.yaml" for name in templates]
    done = subprocess.run(
        [helm(), "template", "commwatch", CHART, *OPTIONS, *shown], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return header() + re.sub(r"^ *app\.kubernetes\.io/managed-by: .*\n|^# Source: .*\n", "", done.stdout, flags=re.M)


def main() -> int:
    """Write the manifests, or only look whether they are of this chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the chart has changed")
    if parser.parse_args().check:
        stale = [name for name in MANIFESTS if not (TARGET / name).read_text().startswith(header())]
        for name in stale:
            print(f"packaging/kubernetes/{name} is not of this chart: make chart")
        return 1 if stale else 0
    for name, templates in MANIFESTS.items():
        (TARGET / name).write_text(render(templates))
    return 0


if __name__ == "__main__":
    sys.exit(main())
