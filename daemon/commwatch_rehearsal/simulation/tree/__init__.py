"""The files of a simulated node: ``/sys`` and ``/proc``."""
