#!/bin/sh
# Epilog= of slurm.conf: runs as root on each node of a job after its last step.
# A node on which the job has met a fault of commwatch's drain list is drained before the next job gets it, not up to
# HealthCheckInterval later. It never fails: Slurm would drain the node with a reason that names no part.
# The hold of the prolog is left alone: it may be that of another job, which is starting now.
PATH=/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}
export PATH
timeout -k 1 10 commwatch healthcheck --slurm --drain
exit 0
