"""A rank on another interpreter than the daemon's: ``PYTHON rank_elsewhere.py``, which needs torch there and no more.

commwatch is taken from where this file is; nothing else of the daemon's environment comes with it.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def take_commwatch() -> None:
    """Make this commwatch the one that is imported, without what lies beside it."""
    package = Path(__file__).resolve().parents[2]
    spec = spec_from_file_location("commwatch", package / "__init__.py", submodule_search_locations=[str(package)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{package}: no package")
    module = sys.modules["commwatch"] = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose files have names of other modules
    take_commwatch()
    from commwatch.probes.cycle.rank import main

    main()
