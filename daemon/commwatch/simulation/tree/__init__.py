"""The files of a simulated node: ``/sys`` and ``/proc``."""

from commwatch.simulation.tree.procfs import ProcfsTree
from commwatch.simulation.tree.sysfs import PARTS, SysfsTree

__all__ = ("PARTS", "ProcfsTree", "SysfsTree")
