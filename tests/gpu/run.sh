#!/usr/bin/env bash
# Repeats every claim that the README makes of CUDA, on this machine's first card.
#
#   tests/gpu/run.sh [OUT]     needs `tune` (built with --features cuda) and the test binary `gpu` on PATH
#
# Logs, journals and recommendations go to OUT (default: a temporary folder); a table closes the output. `STEPS=quick`
# leaves the long tables out. Build both with
#   cargo build --release --features cuda && cargo test --release --features cuda --no-run --test gpu
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
repository=$PWD
config=$repository/configs/gpt2-medium.yaml
rows=()
row() { rows+=("$(printf '%-58s %s' "$1" "$2")"); }
field() { python3 - "$1" "$2" <<'P'
import sys
try:
    import yaml
    value = yaml.safe_load(open(sys.argv[1]))
    for key in sys.argv[2].split('.'):
        value = value[key]
    print(value)
except Exception as error:
    print(f"? ({error})")
P
}
expect() { # NAME CODE COMMAND…: the exit code, and the last line of its log
  local name=$1 code=$2; shift 2
  local log="$out/$name.log" begun=$SECONDS
  timeout 400 "$@" >"$log" 2>&1
  local found=$?
  local verdict=ok; [ "$found" = "$code" ] || verdict="FAILED (expected $code)"
  row "$name: exit $found in $((SECONDS - begun)) s" "$verdict"
}

work=$(mktemp -d); cd "$work" || exit 1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

# --- the device room: hook, pool, classification, faults; the tables with their intervals
timeout 300 gpu --test-threads 1 >"$out/gpu-tests.log" 2>&1
row "gpu tests" "$(grep -E '^test result' "$out/gpu-tests.log" || echo 'FAILED (no result)')"
if [ "${STEPS:-all}" = all ]; then
  timeout 400 gpu --test-threads 1 --ignored --nocapture >"$out/gpu-tables.log" 2>&1
  grep -vE '^(test |running|$)' "$out/gpu-tables.log"
fi

# --- the main job under two limits
for limit in 40GiB 12GiB; do
  expect "gpt2-medium-$limit" 0 tune --config "$config" --limit $limit --study "$out/study-$limit" --output "$out/rec-$limit.yaml"
  r=$out/rec-$limit.yaml
  row "  status, micro x accumulation" "$(field $r status) $(field $r recommended.batch_size) x $(field $r recommended.accumulation_steps)"
  row "  samples/s, peak reserved GB, fragmentation" "$(field $r measured.samples_per_second) $(field $r measured.peak_reserved_bytes) $(field $r measured.fragmentation.max)"
  row "  trials, out of memory" "$(field $r provenance.trials) $(field $r provenance.oom_trials)"
done

# --- the largest batch found against a plain loop over batches (grid runs every pair as it is)
expect plain-loop 0 tune --config "$config" --limit 40GiB --strategy grid --study "$out/study-grid" --output "$out/rec-grid.yaml" \
  --set 'search.loader_workers=[0]' --set 'search.device_prefetch=[0]' --set trial.steps=4
row "  grid: micro x accumulation, samples/s" "$(field "$out/rec-grid.yaml" recommended.batch_size) x $(field "$out/rec-grid.yaml" recommended.accumulation_steps), $(field "$out/rec-grid.yaml" measured.samples_per_second)"

# --- the other precision, and a candle program with the recommendation's pool
expect f32 0 tune --config "$config" --limit 40GiB --study "$out/study-f32" --output "$out/rec-f32.yaml" \
  --set train.precision=f32 --set target.batch_size=4 --set trial.soak_steps=20
row "  micro x accumulation, samples/s" "$(field "$out/rec-f32.yaml" recommended.batch_size) x $(field "$out/rec-f32.yaml" recommended.accumulation_steps), $(field "$out/rec-f32.yaml" measured.samples_per_second)"
if command -v apply_allocator >/dev/null; then
  expect apply_allocator 0 apply_allocator "$out/rec-40GiB.yaml"
  row "  its last line" "$(tail -n 1 "$out/apply_allocator.log")"
fi

# --- named outcomes
expect no-device 4 env CUDA_VISIBLE_DEVICES= tune --config "$config" --device cuda
expect model-too-large 3 tune --config "$config" --limit 1GiB --study "$out/study-1GiB" --output "$out/rec-1GiB.yaml"
( # kills the worker in the middle of the soak
  for _ in $(seq 200); do
    sleep 0.5
    grep -qs '"trial_started".*"soak"' "$out/study-killed/journal.jsonl" && { sleep 3; pkill -KILL -f 'tune worker'; break; }
  done ) &
expect worker-killed 0 tune --config "$config" --limit 40GiB --study "$out/study-killed" --output "$out/rec-killed.yaml" \
  --set target.batch_size=4 --set 'search.loader_workers=[0]'
row "  outcomes in its journal" "$(grep -o '"outcome":"[a-z_]*"' "$out/study-killed/journal.jsonl" | sort | uniq -c | tr -s ' \n' ' ')"
row "memory in use on the card afterwards" "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader)"

printf '\n%s\n' "${rows[@]}" | tee "$out/table.txt"
case "${rows[*]}" in *FAILED*) exit 1;; esac
