#!/usr/bin/env bash
# Data-parallel training on two cards: right exchanges and their bandwidth, losses equal to those of one card, GPT-2
# medium tuned end to end at `replicas: 2`, its scaling, and a rank killed in the middle of a step.
#
#   tests/gpu/replicas.sh [OUT]    needs `tune` and the test binary `gpu`, both built with --features nccl, on PATH
#
# NCCL is looked for in LD_LIBRARY_PATH, and beside PyTorch where there is one. Everything is packed into OUT/all.tgz.
# Build both with
#   cargo build --release --features nccl && cargo test --release --features nccl --no-run --test gpu
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
keep=$(mktemp -d)
config=$PWD/configs/gpt2-medium.yaml
rows=()
row() { rows+=("$(printf '%-62s %s' "$1" "$2")"); }

# The wheel that PyTorch brings along, wherever its packages lie.
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null) || nccl=
[ -n "$nccl" ] && export LD_LIBRARY_PATH="$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
echo "NCCL: ${nccl:-as the system has it}, NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-unset}"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | tee "$keep/cards.txt"
nvidia-smi topo -m >"$keep/topology.txt" 2>&1

work=$(mktemp -d); cd "$work" || exit 1

# --- exchanges, losses, and a lost rank, by the test binary
for test in exchanges_are_right_and_their_bandwidth_is_printed two_cards_train_as_one_with_the_whole_batch \
  a_rank_that_is_killed_within_an_exchange_does_not_hang_the_other; do
  timeout 100 gpu --exact "replicas::$test" --ignored --nocapture >"$keep/$test.log" 2>&1
  row "$test" "$(grep -E '^test result' "$keep/$test.log" | cut -d. -f1 || true)"
  grep -E '^(bandwidth|losses|update|a rank)' "$keep/$test.log"
done

# --- one card and two, the same work on each
measured() { # FILE KEY: a figure of a recommendation
  python3 - "$1" "$2" <<'P'
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
for replicas in 1 2; do
  begun=$SECONDS
  timeout 90 tune --config "$config" --device cuda:0 --limit 40GiB --study "$keep/replicas-$replicas" \
    --output "$keep/replicas-$replicas.yaml" --set target.replicas=$replicas --set target.batch_size=$((16 * replicas)) \
    --set 'search.loader_workers=[0]' --set 'search.device_prefetch=[0]' --set trial.soak_steps=20 \
    >"$keep/replicas-$replicas.log" 2>&1
  row "tune, replicas $replicas: exit, seconds" "$? , $((SECONDS - begun))"
  file=$keep/replicas-$replicas.yaml
  row "  status, micro x accumulation, effective" "$(measured "$file" status), $(measured "$file" recommended.batch_size) x $(measured "$file" recommended.accumulation_steps), $(measured "$file" recommended.effective_batch_size)"
  row "  samples/s, peak allocated, forecast" "$(measured "$file" measured.samples_per_second), $(measured "$file" measured.peak_allocated_bytes), $(measured "$file" forecast.method) $(measured "$file" forecast.error_percent)"
done
row "scaling: samples/s of two over twice those of one" "$(python3 - "$keep" <<'P'
import sys
try:
    import yaml
    one, two = (yaml.safe_load(open(f"{sys.argv[1]}/replicas-{n}.yaml")) for n in (1, 2))
    of = lambda r: r["measured"]["samples_per_second"]
    print(f"{of(two) / (2 * of(one)):.3f}")
except Exception as error:
    print(f"? ({error})")
P
)"

# --- a rank killed in the middle of the soak: only a worker of this very run
timeout 80 tune --config "$config" --device cuda:0 --limit 40GiB --study "$keep/killed" --output "$keep/killed.yaml" \
  --set target.replicas=2 --set target.batch_size=32 --set 'search.loader_workers=[0]' --set 'search.device_prefetch=[0]' \
  --set trial.soak_steps=40 >"$keep/killed.log" 2>&1 &
timed=$!
for _ in $(seq 140); do
  sleep 0.5
  if grep -qs '"trial_started".*"soak"' "$keep/killed/journal.jsonl"; then
    sleep 2
    tuner=$(pgrep -P "$timed" | head -n 1)
    victim=$(pgrep -P "$tuner" | tail -n 1)
    [ -n "$victim" ] && kill -KILL "$victim"
    break
  fi
done
wait "$timed"
row "tune with a rank killed in the soak: exit" "$?"
row "  outcomes in its journal" "$(grep -o '"outcome":"[a-z_]*"' "$keep/killed/journal.jsonl" | sort | uniq -c | tr -s ' \n' ' ')"
row "  the rank that is named" "$(grep -o '"rank":[0-9]*' "$keep/killed/journal.jsonl" | sort | uniq -c | tr -s ' \n' ' ')"
row "memory in use on the cards afterwards" "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader | tr '\n' ' ')"
row "programs left on the cards" "$(nvidia-smi --query-compute-apps=pid --format=csv,noheader | wc -l)"

printf '\n%s\n' "${rows[@]}" | tee "$keep/table.txt"
rm -f "$keep"/*/*.trace
mkdir -p "$out" && tar -C "$keep" -czf "$out/all.tgz" .
