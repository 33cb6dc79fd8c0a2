"""Reads sysfs in a process of its own, and prints it as JSON: ``commwatch.node.topology SYSFS PROCFS``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from commwatch.node.topology.sysfs import read_sysfs

if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(read_sysfs(Path(sys.argv[1]), Path(sys.argv[2]))))
