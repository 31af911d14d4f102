#!/bin/bash
# A batch job on a Ray cluster of Slurm's nodes: sbatch examples/slurm.sh
#SBATCH --job-name=rksc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail

# A folder that all nodes share; the requeued job goes on from what is in it.
OUT=${OUT:-$HOME/runs/first}
INPUT=${INPUT:-problems.jsonl}

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Everything on a node that is Ray's ends with this command: hence --exclusive.
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    python -m orchestrator run "$INPUT" --out "$OUT" --strategy tot --set wait_for_resources_s=120 "$@"
