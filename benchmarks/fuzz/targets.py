"""All that is fuzzed."""

from typing import Final

from benchmarks.fuzz.files import FILES
from benchmarks.fuzz.streams import STREAMS

TARGETS: Final = {one.name: one for one in (*FILES, *STREAMS)}
