"""What goes wrong on a simulated node, where and when: kinds of fault, and the file that names them."""

from commwatch.simulation.faults.kinds import FAMILIES, KINDS
from commwatch.simulation.faults.model import Fault, Kind, Setting, SimulatedProbeFailure, Target
from commwatch.simulation.faults.parse import parse_faults

__all__ = ("FAMILIES", "KINDS", "Fault", "Kind", "Setting", "SimulatedProbeFailure", "Target", "parse_faults")
