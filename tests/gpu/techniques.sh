#!/usr/bin/env bash
# What the techniques that decide memory lead a search to: GPT-2 medium, 512 tokens, target 64. Under 12 GiB with and
# without recomputation as a choice; under 40 GiB in each precision. Needs `tune` (built with --features cuda) on PATH.
#
#   tests/gpu/techniques.sh [OUT [CASE...]]
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
shift $(($# < 1 ? $# : 1))
[ $# -gt 0 ] || set -- plain auto bf16 f16 mixed_bf16 f32
mkdir -p "$out"
for name in "$@"; do
  case $name in
    plain) settings="--set memory.limit=12GiB" ;;
    auto) settings="--set memory.limit=12GiB --set train.gradient_checkpointing=auto" ;;
    *) settings="--set memory.limit=40GiB --set train.precision=$name" ;;
  esac
  # shellcheck disable=SC2086 # several words each
  timeout 150 tune --config configs/gpt2-medium.yaml $settings --set search.loader_workers=[1] --set search.prefetch_depth=[2] \
    --set trial.soak_steps=20 --fresh --study "$out/$name" --output "$out/$name.recommendation.yaml" >"$out/$name.log" 2>&1
  echo "$name: exit $?"
done
python3 - "$out" "$@" <<'P' | tee "$out/techniques.txt"
import os, re, sys
for name in sys.argv[2:]:
    path = os.path.join(sys.argv[1], f"{name}.recommendation.yaml")
    text = open(path).read() if os.path.exists(path) else ""
    def field(key):
        found = re.search(rf"^ *{key}: (.*)$", text, re.M)
        return found.group(1) if found else "-"
    gib = lambda key: f"{int(field(key)) / 2**30:.1f}" if field(key).isdigit() else "-"
    print(f"{name}: {field('status')}, {field('batch_size')} × {field('accumulation_steps')}, checkpointing "
          f"{field('gradient_checkpointing')}, reserved {gib('peak_reserved_bytes')} GiB, {field('samples_per_second')} samples/s, "
          f"trials {field('trials')} ({field('oom_trials')} out of memory), {field('seconds')} s, forecast {field('method')}")
P
