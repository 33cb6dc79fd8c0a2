#!/bin/sh
# HealthCheckProgram= of slurm.conf: drains this node while a fault of commwatch's drain list is fresh (docs/using/healthcheck.md).
# Slurm runs it as root on every node and kills it after 60 s. It never fails, and never lifts a drain.
PATH=/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}
export PATH
timeout -k 1 10 commwatch healthcheck --slurm --drain
exit 0
