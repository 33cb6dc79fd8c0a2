"""Changed, cut and spliced inputs for everything that reads what others wrote; which of them break a promise.

The promise of each reader: it gives something or raises an error of ours, needs less than a second of CPU, and takes
less than 64 MiB. An input that reaches a line of commwatch that none before it has reached is kept and changed further.
What breaks a promise is made small and written to ``tests/fuzz/corpus``, which the suite tries each time.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "daemon", "exporters")]  # the checkout need not be installed
