#!/usr/bin/env bash
# The loader's settings that `staged` finds against the full grid of them, for a pipeline that costs several processors:
# GPT-2 medium with 4 layers at 128 tokens, 32 samples a step, 8 ms of processor time a sample. Needs `tune` (built with
# --features cuda) on PATH.
#
#   tests/gpu/loader.sh [OUT]
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
cat >"$out/heavy.yaml" <<'Y'
version: 1
name: heavy-pipeline
model: {family: gpt, preset: gpt2-medium, layers: 4, sequence_length: 128}
train: {precision: bf16}
data: {source: synthetic, cost: 8ms, sample_bytes: 600KiB}
target: {batch_size: 32}
search: {accumulation_steps: [1], loader_workers: [0, 1, 2, 4, 8, 12], prefetch_depth: [2, 1], device_prefetch: [0]}
trial: {steps: 8, soak_steps: 30}
Y
for strategy in staged grid; do
  timeout 200 tune --config "$out/heavy.yaml" --strategy $strategy --fresh --study "$out/loader-$strategy" \
    --output "$out/loader-$strategy.yaml" >"$out/loader-$strategy.log" 2>&1
  echo "$strategy: exit $?"
done
python3 - "$out" <<'P' | tee "$out/loader.txt"
import json, os, sys
for strategy in ("staged", "grid"):
    print(strategy)
    for line in open(os.path.join(sys.argv[1], f"loader-{strategy}", "journal.jsonl")):
        entry = json.loads(line)
        if entry.get("entry") != "trial_ended":
            continue
        record = entry["record"]
        point, measured = record["spec"]["point"], record["measurement"] or {}
        print(f"  {record['spec']['purpose']:<12} {point['loader_workers']:>2} x {point['prefetch_depth']} "
              f"{measured.get('samples_per_second', 0):9.1f} samples/s, {100 * measured.get('data_wait_fraction', 0):5.1f} % wait, "
              f"{measured.get('step_ms', {}).get('p50', 0):7.1f} ms, {measured.get('batches_per_second') or 0:6.1f} batches/s alone, "
              f"{record['seconds']:.1f} s, {record['outcome']['outcome']}")
P
