#!/usr/bin/env bash
# Varying lengths on a card: GPT-2 medium in bf16, 8 samples of 64 to 512 tokens, a soak of 200 steps; the fragmentation
# rate of the driver's pool and of PyTorch's native allocator fed the same events. Needs `tune` (built with
# --features cuda) on PATH.
#
#   tests/gpu/lengths.sh [OUT]
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
cat >"$out/lengths.yaml" <<Y
version: 1
name: lengths
model: {family: gpt, preset: gpt2-medium, sequence_length: 512}
train: {precision: bf16}
data: {sequence_length: {min: 64, max: 512, distribution: uniform}, padding: longest}
target: {batch_size: 8}
search: {accumulation_steps: [1], batch_size: {start: 100%}, loader_workers: [2], prefetch_depth: [2], device_prefetch: [1]}
memory: {allocator: native}      # a shadow of PyTorch's allocator beside the driver's pool
trial: {steps: 8, soak_steps: 200}
Y
timeout 280 tune --config "$out/lengths.yaml" --fresh --study "$out/lengths" \
  --output "$out/lengths.recommendation.yaml" >"$out/lengths.log" 2>&1
echo "lengths: exit $?"
python3 - "$out" <<'P' | tee "$out/lengths.txt"
import json, os, sys
GB = 1e9
for line in open(os.path.join(sys.argv[1], "lengths", "journal.jsonl")):
    entry = json.loads(line)
    if entry.get("entry") != "trial_ended" or entry["record"]["spec"]["purpose"] != "soak":
        continue
    record = entry["record"]
    samples = record["samples"]
    peak = max(s["peak_reserved_bytes"] for s in samples)
    used = max(s["peak_allocated_bytes"] for s in samples)
    # What the shadow reserved in a window, from its rate; its own highest need is the device's.
    shadow = [s["peak_allocated_bytes"] / (1 - s["shadow"]["peak"]) for s in samples if s.get("shadow")]
    print(f"{len(samples)} samples, reserved {peak / GB:.2f} GB, allocated {used / GB:.2f} GB, "
          f"driver pool 1 - peak allocated / peak reserved {1 - used / peak:.4f}, "
          f"native reserved {shadow[0] / GB:.2f} GB first, {shadow[-1] / GB:.2f} last, {max(shadow) / GB:.2f} highest: "
          f"{1 - used / max(shadow):.4f} fragmented at the end of growth; "
          f"{record['measurement']['samples_per_second']:.1f} samples/s; {record['outcome']['outcome']}")
    print("  shadow sample:", json.dumps(samples[-1].get("shadow")))
P
