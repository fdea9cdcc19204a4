#!/usr/bin/env bash
# A PyTorch program whose batches vary in length (tests/gpu/long_run.py, 64 to 1024 tokens) tuned end to end on a card:
# the settings of PyTorch's allocator that are found over the coming run, soaked, and the same steps soaked under the
# program's own. Under three limits: one that leaves room for all, one between what the defaults and what other settings
# need, and one that is too small for the batch under any. Needs `tune` (any build) on PATH or in TUNE, and a python3 with torch.
#
#   tests/gpu/tuned.sh [OUT]      by default LIMITS="40GiB 13GiB 8GiB", SECONDS_IN_ALL=330
#
# Without a card: PROGRAM="tests/gpu/long_run_pretend.py" DEVICE=cpu LIMITS=16GiB PRELOAD="torch, torch._subclasses.fake_tensor"
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
out=${1:-${OUT:-$(mktemp -d)}}
logs=$(mktemp -d)
mkdir -p "$out"
tune=${TUNE:-tune}
end=$((SECONDS + ${SECONDS_IN_ALL:-330}))
export PYTHONDONTWRITEBYTECODE=1

# The lengths of the program's own batches: the longest of 8 samples drawn evenly, as padding to the longest makes them.
python3 - >"$logs/lengths.txt" <<'P'
import random
random.seed(10)
for _ in range(2000):
    print(max(random.randint(64, 1024) for _ in range(8)))
P
cat >"$logs/tuned.yaml" <<Y
version: 1
name: tuned
device: ${DEVICE:-cuda:0}
command:
  run: [python3, $PWD/${PROGRAM:-tests/gpu/long_run.py}, "--batch-size={batch_size}", "--steps={steps}",
        "--sequence-length={sequence_length}", "--lengths-file=$logs/lengths.txt"]
  preload: [${PRELOAD:-torch}]
  timeout: 3m
data: {sequence_length: {min: 64, max: 1024}}
target: {batch_size: 8}
search: {accumulation_steps: [1], loader_workers: [0]}
trial: {steps: 20, soak_steps: 100}
Y

for limit in ${LIMITS:-40GiB 13GiB 8GiB}; do
  left=$((end - SECONDS))
  [ "$left" -lt 30 ] && { echo "$limit: left out, no time"; continue; }
  begun=$SECONDS
  timeout -k 5 "$left" "$tune" --config "$logs/tuned.yaml" --limit "$limit" --fresh --study "$logs/$limit" \
    --output "$logs/$limit.yaml" >"$logs/$limit.log" 2>&1
  echo "== $limit: exit $?, $((SECONDS - begun)) s"
  python3 - "$logs/$limit" <<'P'
import json, sys

def gib(count):
    return f"{count / 2**30:.2f} GiB"

for line in open(sys.argv[1] + "/journal.jsonl"):
    entry = json.loads(line)
    kind = entry.get("entry")
    if kind == "allocator_tuned":
        print("  searched:", entry["found"])
    elif kind == "trial_ended" and entry["record"]["spec"]["purpose"] == "soak":
        record = entry["record"]
        point, measured = record["spec"]["point"], record.get("measurement") or {}
        peaks = [sample["peak_reserved_bytes"] for sample in record.get("samples", [])]
        outlook = record.get("outlook") or {}
        print(f"  soak of {point['batch_size']} under {point.get('alloc_conf') or 'its own settings'}: "
              f"{record['outcome']['outcome']}, reserved {gib(max(peaks, default=0))}, "
              f"{measured.get('samples_per_second') or 0:.1f} samples/s; whole run: {outlook.get('method')}, "
              f"breach {json.dumps(outlook.get('breach'))}")
P
  awk '/^recommended:/ { inside = 1; next } /^[^ ]/ { inside = 0 } inside && /batch_size:|conf:|reason:/' "$logs/$limit.yaml"
  grep -E '^(error|Safe|No safe)' "$logs/$limit.log" | sed 's/^/  /'
done 2>&1 | tee "$logs/table.txt"
rm -f "$logs"/*/*.trace
tar -C "$logs" -czf "$out/tuned.tgz" .
