#!/usr/bin/env bash
# A PyTorch program of two ranks tuned on two cards by torchrun and NCCL, the faults of one rank, and the doctor's links:
# the table "ranks" of the README. Needs `tune` (any build) on PATH or in TUNE, and a python3 with torch and torchrun.
#
#   tests/gpu/ranks.sh [OUT]      by default LIMIT=40GiB, FAULTS="out_of_memory kill"; under 90 s
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
logs=$(mktemp -d)
mkdir -p "$out"
tune=${TUNE:-tune}
limit=${LIMIT:-40GiB}
end=$((SECONDS + 88))
torchrun=torchrun
command -v torchrun >/dev/null || torchrun="python3, -m, torch.distributed.run"
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}

table() { printf '%s\n' "$*" | tee -a "$logs/table.txt"; }
left() { local left=$((end - SECONDS)); echo $((left > 1 ? left : 1)); }

table "== links"
nvidia-smi topo -m >"$logs/topo.txt" 2>&1
nvidia-smi topo -p2p r >"$logs/p2p.txt" 2>&1
timeout 10 "$tune" doctor >"$logs/doctor.txt" 2>"$logs/doctor.err"
timeout 10 "$tune" doctor --json >"$logs/doctor.json" 2>>"$logs/doctor.err"
grep -E "^(GPU0|GPU1)" "$logs/topo.txt" | cut -f1-3 | tee -a "$logs/table.txt"
grep -E "NVLink|PCIe|^cuda:|^card|peer" "$logs/doctor.txt" | tee -a "$logs/table.txt"

# NAME SCRIPT… : a study of few trials, since each starts torch anew.
tuned() {
  local name=$1 run=$2; shift 2
  local begun=$EPOCHREALTIME
  timeout "$(left)" "$tune" --config examples/pytorch/ddp.yaml --limit "$limit" --fresh --study "$logs/$name" \
    --output "$logs/$name.yaml" --set "command.run=[$torchrun, --standalone, '--nproc-per-node={replicas}', $run, \
--size=small, --sequence-length=512, '--batch-size={batch_size}', '--accumulation-steps={accumulation_steps}', \
'--steps={steps}']" --set search.strategy=grid --set 'search.batch_size.start=100%' --set 'search.accumulation_steps=[1]' \
    --set 'search.loader_workers=[0]' --set 'search.device_prefetch=[0]' --set trial.steps=6 --set trial.timeout=20s \
    "$@" >"$logs/$name.log" 2>&1
  local status=$?
  table "$(printf '%-16s exit %3d  %5.1f s  ranks left: %s' "$name" $status "$(awk "BEGIN { print $EPOCHREALTIME - $begun }")" \
    "$(pgrep -fc 'nproc-per-node|ddp.py|ranks_broken.py')")"
  # The answer's figures, or why there is none.
  grep -E "^Safe|samples/s,|reserved at the peak|rank [0-9]|^error|^Warning" "$logs/$name.log" | cut -c1-200 | tail -8 |
    sed 's/^/    /' | tee -a "$logs/table.txt"
}

table "== two ranks, 16 samples each"
tuned healthy examples/pytorch/ddp.py --set target.batch_size=32 --set trial.soak_steps=12
for fault in ${FAULTS-out_of_memory kill}; do
  [ "$(left)" -gt 5 ] || { table "no time left for $fault"; continue; }
  tuned "$fault" "tests/gpu/ranks_broken.py, $fault" --set target.batch_size=8
done
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader | tee -a "$logs/table.txt"
# Small files alone: journals, logs and answers; no recording.
(cd "$logs" && find . -type f -size -8M \( -name '*.txt' -o -name '*.json' -o -name '*.jsonl' -o -name '*.yaml' -o -name '*.log' -o -name '*.err' \) -print0 |
  tar --null -czf "$out/all.tgz" -T -)
