#!/bin/sh
# Prolog= of slurm.conf, with PrologFlags=Alloc: runs as root on each node of a job before its first step.
# A job does not start on a node with a fault of commwatch's drain list: a prolog that fails drains the node, and Slurm
# queues the job again. On any other node the probes are gone before the job starts, and none begins for ten minutes.
PATH=/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}
export PATH
# 1 alone is no verdict: a Python that cannot start ends with 1 too.
if line=$(timeout -k 1 10 commwatch healthcheck --slurm); [ $? -eq 1 ]; then
    case $line in
    "Critical: "*)
        echo "commwatch: $line" >&2
        exit 1
        ;;
    esac
fi
timeout -k 1 10 commwatch yield --wait 5s --hold 10m
exit 0
