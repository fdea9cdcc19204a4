#!/usr/bin/env bash
# The configuration of every family on a card, each to a recommendation, and a table of what came out. Needs `tune`
# (built with --features cuda) on PATH.
#
#   tests/gpu/families.sh [OUT [SECONDS [CONFIG...]]]     SETTINGS="--set trial.steps=4 …" for all of them
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
seconds=${2:-600}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- gpt2-medium bert vit resnet llama llama-2-7b
mkdir -p "$out"
for name in "$@"; do
  timeout $((seconds + 30)) tune --config "configs/$name.yaml" --set "budget.time=${seconds}s" --set trial.soak_steps=20 \
    ${SETTINGS:-} --fresh --study "$out/$name" --output "$out/$name.recommendation.yaml" >"$out/$name.log" 2>&1
  echo "$name: exit $?"
done
python3 - "$out" "$@" <<'P' | tee "$out/families-$1.txt"
import json, os, re, sys
for name in sys.argv[2:]:
    path = os.path.join(sys.argv[1], f"{name}.recommendation.yaml")
    if not os.path.exists(path):
        print(f"{name}: no recommendation")
        continue
    text = open(path).read()
    def field(key):
        found = re.search(rf"^ *{key}: (.*)$", text, re.M)
        return found.group(1) if found else "-"
    gib = lambda key: f"{int(field(key)) / 2**30:.1f}" if field(key).isdigit() else "-"
    print(f"{name}: {field('status')}, {field('batch_size')} × {field('accumulation_steps')}, "
          f"checkpointing {field('gradient_checkpointing')}, {field('loader_workers')} × {field('prefetch_depth')}, "
          f"peak allocated {gib('peak_allocated_bytes')} GiB, reserved {gib('peak_reserved_bytes')} GiB, "
          f"{field('samples_per_second')} samples/s, rate {field('max')}, trials {field('trials')} ({field('oom_trials')} out of memory), "
          f"{field('seconds')} s, forecast {field('method')}")
P
