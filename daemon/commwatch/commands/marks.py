"""commwatch marks: what a site asks of its machines."""

from __future__ import annotations

from commwatch.commands import marks_learn
from commwatch.commands.command import Family

run = Family(
    "marks",
    "floors that the machines of a site have to reach",
    "A site's own floors, which healthcheck --require and diagnose judge by (setting marks).",
    "commwatch marks learn --output site-marks.yaml node1.json node2.json",
    (marks_learn.run,),
)
