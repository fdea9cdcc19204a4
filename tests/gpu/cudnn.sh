#!/usr/bin/env bash
# What cuDNN does for convolutions: a step of ResNet-50 in bf16 and f32 with and without it. Needs `tune` (built with
# --features cuda) and `tune-cudnn` (the same with --features cudnn) on PATH.
#
#   tests/gpu/cudnn.sh [OUT]
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
for precision in bf16 f32; do
  cat >"$out/cudnn-$precision.yaml" <<Y
version: 1
name: resnet50-$precision
model: {family: resnet, preset: resnet50}
train: {precision: $precision, optimizer: sgd, momentum: 0.9}
target: {batch_size: 64}
search: {strategy: grid, accumulation_steps: [1], batch_size: {start: 100%}, loader_workers: [8], prefetch_depth: [2], device_prefetch: [1]}
trial: {steps: 8, soak_steps: 4}
Y
  for program in tune tune-cudnn; do
    timeout 60 $program --config "$out/cudnn-$precision.yaml" --fresh --study "$out/$program-$precision" \
      --output "$out/$program-$precision.yaml" >"$out/$program-$precision.log" 2>&1
    echo "$program $precision: exit $?"
  done
done
python3 - "$out" <<'P' | tee "$out/cudnn.txt"
import json, os, sys
for precision in ("bf16", "f32"):
    for program in ("tune", "tune-cudnn"):
        path = os.path.join(sys.argv[1], f"{program}-{precision}", "journal.jsonl")
        for line in open(path) if os.path.exists(path) else []:
            entry = json.loads(line)
            if entry.get("entry") != "trial_ended":
                continue
            record = entry["record"]
            measured = record["measurement"] or {}
            phases = measured.get("phases", {})
            print(f"  {precision} {program:<10} {record['spec']['purpose']:<8} step {measured.get('step_ms', {}).get('p50', 0):7.1f} ms "
                  f"(forward {phases.get('forward_ms', 0):6.1f}, backward {phases.get('backward_ms', 0):6.1f}), peak "
                  f"{measured.get('peak_allocated_bytes', 0) / 2**30:.2f} GiB allocated, {record['outcome']['outcome']}")
P
