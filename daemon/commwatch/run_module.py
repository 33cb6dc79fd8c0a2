"""Runs a module of ours in an isolated interpreter: ``python -I run_module.py SEARCH_PATH MODULE ARGUMENT...``.

Isolated, the interpreter takes nothing from the current folder, from ``PYTHON...`` variables or from the user's own
packages. The parent's search path comes as an argument.
"""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[1].split(os.pathsep)
    module = sys.argv[2]
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
