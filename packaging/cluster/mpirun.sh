#!/bin/bash
# A run between nodes by Open MPI: ./mpirun.sh HOSTFILE probe --report run.json
# Its first host hosts the store. Open MPI ends all members when one exits with a code above 0, so all of them say the verdict's.
set -euo pipefail

if (( $# < 2 )) || [[ ! -r $1 ]]; then
    echo "usage: $0 HOSTFILE check|probe [OPTION...]" >&2
    exit 2
fi
hostfile=$1
shift
MASTER_ADDR=$(awk '!/^[[:space:]]*(#|$)/ { print $1; exit }' "$hostfile")
COMMWATCH_CLUSTER_KEY=$(openssl rand -hex 32)
export MASTER_ADDR COMMWATCH_CLUSTER_KEY
exec mpirun --hostfile "$hostfile" --map-by ppr:1:node -x COMMWATCH_CLUSTER_KEY -x MASTER_ADDR commwatch cluster "$@"
