#!/usr/bin/env bash
# Gradient checkpointing on a card: GPT-2 medium in bf16, 512 tokens, a micro-batch of 8, with and without; peak memory and
# time of a step. Needs `tune` (built with --features cuda) on PATH.
#
#   tests/gpu/recompute.sh [OUT]
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
cat >"$out/recompute.yaml" <<'Y'
version: 1
name: recompute
model: {family: gpt, preset: gpt2-medium, sequence_length: 512}
train: {precision: bf16, gradient_checkpointing: auto}
target: {batch_size: 8}
search: {strategy: grid, accumulation_steps: [1], batch_size: {start: 100%}, loader_workers: [2], prefetch_depth: [2], device_prefetch: [0]}
trial: {steps: 12, soak_steps: 20}
Y
timeout 150 tune --config "$out/recompute.yaml" --fresh --study "$out/recompute" --output "$out/recompute.recommendation.yaml" \
  >"$out/recompute.log" 2>&1
echo "recompute: exit $?"
python3 - "$out" <<'P' | tee "$out/recompute.txt"
import json, os, sys
found = {}
for line in open(os.path.join(sys.argv[1], "recompute", "journal.jsonl")):
    entry = json.loads(line)
    if entry.get("entry") != "trial_ended":
        continue
    record = entry["record"]
    measured = record["measurement"] or {}
    how = record["spec"]["point"]["gradient_checkpointing"]
    found.setdefault((record["spec"]["purpose"], how), measured)
    phases = measured.get("phases", {})
    print(f"  {record['spec']['purpose']:<8} {how:<7} peak {measured.get('peak_allocated_bytes', 0) / 2**30:6.2f} GiB allocated, "
          f"step {measured.get('step_ms', {}).get('p50', 0):7.1f} ms (forward {phases.get('forward_ms', 0):6.1f}, backward "
          f"{phases.get('backward_ms', 0):6.1f}), {measured.get('samples_per_second', 0):6.1f} samples/s, {record['outcome']['outcome']}")
for purpose in {purpose for purpose, _ in found}:
    plain, blocks = found.get((purpose, "none")), found.get((purpose, "blocks"))
    if plain and blocks:
        print(f"{purpose}: peak {100 * (blocks['peak_allocated_bytes'] / plain['peak_allocated_bytes'] - 1):+.1f} %, "
              f"step {100 * (blocks['step_ms']['p50'] / plain['step_ms']['p50'] - 1):+.1f} %")
P
