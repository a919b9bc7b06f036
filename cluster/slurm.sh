#!/usr/bin/env bash
# A suite on Slurm: starts Ray on all nodes of the allocation, runs the suite on it, and ends Ray.
# Edit the three lines marked "1 of 3" to "3 of 3", run `make install` on a disk that all nodes see, then there:
#   sbatch cluster/slurm.sh suites/cifar.yaml
# The same command again resumes. Results are in results/, Ray's own output is in the job's log.
# Tokens keep other users out; they do not encrypt: use a private network.
#SBATCH --job-name=ldaf-bench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --partition=gpu # 1 of 3: your partition; `--nodes` above says how many machines
#SBATCH --gpus-per-node=4 # 2 of 3: GPUs of each node; remove the line if there are none
#SBATCH --time=24:00:00 # 3 of 3: longer than the suite takes
set -euo pipefail
suite=${1:?Say which suite: sbatch cluster/slurm.sh suites/cifar.yaml}
cd "${SLURM_SUBMIT_DIR:?Start this with sbatch, in the folder of the project.}"
export PATH="$PWD/.venv/bin:$PATH"
command -v ray > /dev/null || { echo 'There is no .venv here: run make install first.' >&2; exit 2; }

# A token for this job alone. It travels in the environment, so that it stands in no command line and on no disk.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
# Other jobs may use the usual port of the same machine.
port=$((20000 + SLURM_JOB_ID % 10000))
# A step with all of its node, and bound to no core: Ray starts many processes.
step=(srun --nodes=1 --ntasks=1 --overlap --whole --cpu-bind=none)
on_head=("${step[@]}" --nodelist="$head")
address=$("${on_head[@]}" python -c 'import ray; print(ray.util.get_node_ip_address())')
# Every node knows its own number of cores.
# shellcheck disable=SC2016
all_cores='exec ray start --block --disable-usage-stats --num-cpus="${SLURM_CPUS_ON_NODE:?}" "$@"'
ray_start=(bash -c "ulimit -n 65536 || ulimit -n hard; $all_cores" ray_start)

started=()
# Ending srun ends all that it started, on its node; Slurm does the same if this script is killed.
clean_up() {
  trap - EXIT
  if ((${#started[@]})); then
    kill "${started[@]}" 2> /dev/null || true
    wait "${started[@]}" 2> /dev/null || true
  fi
}
trap clean_up EXIT
trap 'exit 143' INT TERM

"${on_head[@]}" "${ray_start[@]}" --head --node-ip-address="$address" --port="$port" --dashboard-host=127.0.0.1 &
started+=($!)
for node in "${nodes[@]:1}"; do
  # A worker tries for a while if the head is not there yet.
  "${step[@]}" --nodelist="$node" "${ray_start[@]}" --address="$address:$port" &
  started+=($!)
done

# Wait for every node, then run the suite beside the head.
for _ in {1..60}; do
  there=$("${on_head[@]}" ray list nodes --address="$address:$port" --filter state=ALIVE --format=json 2> /dev/null |
    python -c 'import json, sys; print(len(json.load(sys.stdin)))' 2> /dev/null) || there=0
  ((there == ${#nodes[@]})) && break
  sleep 2
done
((there == ${#nodes[@]})) || { echo "Only $there of ${#nodes[@]} nodes came." >&2; exit 1; }
"${on_head[@]}" python -m ldaf_bench.run "$suite" --address="$address:$port"
