#!/bin/bash
# A batch job on a Ray cluster of Slurm's nodes: sbatch examples/slurm.sh
#SBATCH --job-name=rksc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# A folder that all nodes share; the requeued job goes on from what is in it.
OUT=${OUT:-$HOME/runs/first}
INPUT=${INPUT:-problems.jsonl}
# Less than --time: the job pauses by itself, with exit code 75, and is queued again.
SECONDS_A_TIME=${SECONDS_A_TIME:-85000}

# A name that is 127.0.1.1 to the node itself does not do: then give the address.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
code=0
# Everything on a node that is Ray's ends with this command: hence --exclusive.
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    python -m orchestrator run "$INPUT" --out "$OUT" --strategy tot --set wait_for_resources_s=120 \
    --job-seconds "$SECONDS_A_TIME" "$@" || code=$?
if [ "$code" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
