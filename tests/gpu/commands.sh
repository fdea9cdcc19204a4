#!/usr/bin/env bash
# PyTorch scripts tuned as commands, beside the finders of accelerate and Lightning under the same limit: the table
# "commands" of the README. Needs `tune` (any build) on PATH, and a python3 with torch, transformers, torchvision,
# accelerate and lightning.
#
#   tests/gpu/commands.sh [OUT]      by default WORKLOADS="gpt2 resnet50 hf lightning unmodified",
#                                    PEERS="accelerate power binsearch", LIMIT=40GiB
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
limit=${LIMIT:-40GiB}
limit_bytes=$((${limit%GiB} << 30))
table=$PWD/tests/gpu/commands_table.py
declare -A config=([gpt2]=examples/pytorch/gpt2_medium.yaml [resnet50]=examples/pytorch/resnet50.yaml
  [hf]=examples/pytorch/hf_trainer.yaml [lightning]=examples/pytorch/lightning_gpt.yaml [unmodified]=$out/unmodified-config.yaml)
# The same script without its reporter, as one that nobody may change.
cat >"$out/unmodified-config.yaml" <<'Y'
name: unmodified
command:
  run: [env, -u, TUNE_REPORT, python3, examples/pytorch/gpt2.py, --size=small, "--batch-size={batch_size}", "--steps={steps}"]
target: {batch_size: 8}
search: {batch_size: {start: 100%}}
trial: {soak_steps: 20}
Y

tuned() { # NAME WORKLOAD OPTION…
  local name=$1 workload=$2; shift 2
  local begun=$EPOCHREALTIME
  timeout 300 tune --config "${config[$workload]}" --limit "$limit" --fresh --study "$out/$name" --output "$out/$name.yaml" \
    "$@" >"$out/$name.log" 2>&1
  echo "{\"name\": \"$name\", \"exit\": $?, \"seconds\": $(awk "BEGIN { print $EPOCHREALTIME - $begun }")}" >>"$out/runs.jsonl"
}

: >"$out/runs.jsonl"; : >"$out/peers.jsonl"
for workload in ${WORKLOADS:-gpt2 resnet50 hf lightning unmodified}; do
  case $workload in
    hf | lightning) tuned "$workload" "$workload" --set target.batch_size=16 --set trial.soak_steps=20; continue ;;
    unmodified) tuned "$workload" "$workload"; continue ;;
  esac
  tuned "$workload" "$workload"
  # What the import costs: the same study, cut off after two trials, with a new interpreter for each.
  [ "${COLD:-yes}" = yes ] && tuned "$workload-cold" "$workload" --set 'command.preload=[]' --set budget.trials=2
  for peer in ${PEERS-accelerate power binsearch}; do
    timeout 200 python3 tests/gpu/peers.py "$workload" "$peer" "$limit_bytes" >>"$out/peers.jsonl" 2>"$out/$workload-$peer.log" ||
      echo "{\"workload\": \"$workload\", \"finder\": \"$peer\", \"failed\": true}" >>"$out/peers.jsonl"
  done
  # The throughput of each answer in one and the same loop.
  for size in $(python3 "$table" sizes "$out" "$workload"); do
    timeout 100 python3 tests/gpu/peers.py "$workload" "speed:$size" "$limit_bytes" >>"$out/peers.jsonl" 2>>"$out/$workload-speed.log"
  done
done
python3 "$table" table "$out" | tee "$out/commands.txt"
