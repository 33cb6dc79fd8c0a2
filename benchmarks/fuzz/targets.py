"""All that is fuzzed."""

from typing import Final

from benchmarks.fuzz.files import FILES
from benchmarks.fuzz.job_files import JOB_FILES
from benchmarks.fuzz.streams import STREAMS

TARGETS: Final = {one.name: one for one in (*FILES, *JOB_FILES, *STREAMS)}
