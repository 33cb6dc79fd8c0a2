#!/bin/bash
# One member of a run between nodes by torchrun: start it on each node with the same key and host.
#   COMMWATCH_CLUSTER_KEY=... ./torchrun.sh 4 gpu01 probe --report run.json
set -euo pipefail

if (( $# < 3 )); then
    echo "usage: $0 NODES HOST check|probe [OPTION...]; HOST is where member 0 is to be" >&2
    exit 2
fi
nodes=$1 host=$2
shift 2
: "${COMMWATCH_CLUSTER_KEY:?export it, the same on all nodes: openssl rand -hex 32}"
exec torchrun --nnodes="$nodes" --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint="$host:29400" --rdzv-id=commwatch \
    --max-restarts=0 --no-python commwatch cluster "$@"
