#!/usr/bin/env bash
# Data-parallel training on two cards: GPT-2 medium tuned end to end at `replicas: 2`, losses equal to those of one card,
# the scaling, an update's time with the exchange beside and after the backward pass, exchanges and their bandwidth, and a
# rank killed in the middle of a step.
#
#   tests/gpu/replicas.sh [OUT]    needs `tune` and the test binary `gpu`, both built with --features nccl, on PATH
#
# What is worth most comes first, and all of it ends within SECONDS_IN_ALL (300): what no time is left for is said to be left
# out. PARTS picks some of: tuned2 losses tuned1 overlap bandwidth within beside killed. Each result is in OUT as soon as it is
# there, so that a run cut short keeps what it saw; OUT/all.tgz packs the whole.
# NCCL is looked for in LD_LIBRARY_PATH, and beside PyTorch where there is one.
# Build both with
#   cargo build --release --features nccl && cargo test --release --features nccl --no-run --test gpu
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
out=${1:-${OUT:-$(mktemp -d)}}
keep=$out/replicas
mkdir -p "$keep"
keep=$(cd "$keep" && pwd)
config=$PWD/configs/gpt2-medium.yaml
# Ten seconds are kept for killing, figures and packing.
end=$((SECONDS + ${SECONDS_IN_ALL:-300} - 10))
parts=" ${PARTS:-tuned2 losses tuned1 overlap bandwidth within beside killed} "

row() { printf '%-62s %s\n' "$1" "$2" | tee -a "$keep/table.txt"; }
left() { echo $((end - SECONDS)); }
wanted() { [[ $parts == *" $1 "* ]]; }
# SECONDS: so many, or what is left.
at_most() { local left; left=$(left); echo $(($1 < left ? $1 : left)); }
# SECONDS NAME: whether there are so many left; says so where there are not.
fits() {
  [ "$(left)" -ge "$1" ] && return
  row "$2" "left out: $(left) s left"
  return 1
}
pack() {
  rm -f "$keep"/*/*.trace
  tar -C "$keep" -czf "$keep.tgz" . && mv "$keep.tgz" "$out/all.tgz"
}
trap pack EXIT

# The wheel that PyTorch brings along, wherever its packages lie.
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null) || nccl=
[ -n "$nccl" ] && export LD_LIBRARY_PATH="$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
row "NCCL, NCCL_NVLS_ENABLE" "${nccl:-as the system has it}, $NCCL_NVLS_ENABLE"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | tee "$keep/cards.txt"
timeout 5 nvidia-smi topo -m >"$keep/topology.txt" 2>&1

work=$(mktemp -d); cd "$work" || exit 1

# FILE SECTION KEY: a figure of a recommendation, which is plain YAML of two levels there.
figure() {
  awk -v section="$2" -v key="$3:" '/^[^ #]/ { inside = ($1 == section ":") } inside && $1 == key { print $2; exit }' "$1" 2>/dev/null
}

# NAME REPLICAS SOAK: the arguments of a study of few trials, whose data path is fixed.
study() {
  printf '%s\n' --config "$config" --device cuda:0 --limit 40GiB --fresh --study "$keep/$1" --output "$keep/$1.yaml" \
    --set "target.replicas=$2" --set "target.batch_size=$((16 * $2))" --set 'search.loader_workers=[0]' \
    --set 'search.device_prefetch=[0]' --set trial.steps=6 --set trial.timeout=30s --set "trial.soak_steps=$3" \
    --set budget.trials=8
}

# REPLICAS SECONDS: 16 samples a card, tuned end to end.
tuned() {
  wanted "tuned$1" && fits 15 "tune, replicas $1" || return
  local name=replicas-$1 begun=$SECONDS status arguments
  mapfile -t arguments < <(study "$name" "$1" 12)
  timeout -k 5 "$(at_most "$2")" tune "${arguments[@]}" >"$keep/$name.log" 2>&1
  status=$?
  row "tune, replicas $1: exit, seconds" "$status, $((SECONDS - begun))"
  local file=$keep/$name.yaml
  row "  status" "$(awk '$1 == "status:" { print $2; exit }' "$file" 2>/dev/null)"
  row "  micro x accumulation, effective" "$(figure "$file" recommended batch_size) x $(figure "$file" recommended accumulation_steps), $(figure "$file" recommended effective_batch_size)"
  row "  samples/s, peak allocated" "$(figure "$file" measured samples_per_second), $(figure "$file" measured peak_allocated_bytes)"
  row "  forecast, error in percent" "$(figure "$file" forecast method), $(figure "$file" forecast error_percent)"
  pack
}

# PART TEST SECONDS: one of the test binary's.
tested() {
  wanted "$1" && fits 5 "$2" || return
  shift
  local begun=$SECONDS
  timeout -k 5 "$(at_most "$2")" gpu --exact "replicas::$1" --ignored --nocapture >"$keep/$1.log" 2>&1
  row "$1: exit, seconds" "$?, $((SECONDS - begun))"
  grep -E '^(bandwidth|losses|update|overlap|a rank)' "$keep/$1.log" | sed 's/^/  /' | tee -a "$keep/table.txt"
  pack
}

# A rank killed in the middle of a soak that is too long to end before: a worker of this very study alone. The study is
# ended once the loss is in its journal, since what it would try next is known from the others.
killed() {
  local name=killed timed tuner='' victim='' told='' arguments struck
  local journal=$keep/$name/journal.jsonl
  mapfile -t arguments < <(study "$name" 2 400)
  timeout -k 5 "$(at_most 70)" tune "${arguments[@]}" >"$keep/$name.log" 2>&1 &
  timed=$!
  while kill -0 "$timed" 2>/dev/null; do
    sleep 0.2
    tail -n 1 "$journal" 2>/dev/null | grep -qs '"trial_started".*"soak"' || continue
    sleep 2
    tuner=$(pgrep -P "$timed" | head -n 1)
    [ -n "$tuner" ] && victim=$(pgrep -P "$tuner" | tail -n 1)
    [ -n "$victim" ] && kill -KILL "$victim"
    struck=$EPOCHREALTIME
    break
  done
  while [ -n "$victim" ] && kill -0 "$timed" 2>/dev/null; do
    if grep -qs '"trial_ended".*"crashed"' "$journal"; then
      told=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $struck }")
      kill -TERM "$tuner" 2>/dev/null
      break
    fi
    sleep 0.1
  done
  wait "$timed"
  row "a rank killed in the soak: exit, seconds until it was told" "$?, ${told:-never}"
  row "  killed" "${victim:-nobody: no soak was under way}"
  row "  outcomes in its journal" "$(grep -o '"outcome":"[a-z_]*"' "$journal" | sort | uniq -c | tr -s ' \n' ' ')"
  row "  the rank that is named" "$(grep -o '"rank":[0-9]*' "$journal" | sort | uniq -c | tr -s ' \n' ' ')"
  row "  programs left on the cards" "$(nvidia-smi --query-compute-apps=pid --format=csv,noheader | wc -l)"
  pack
}

# Kernels are compiled once on a machine: nobody's time.
timeout 60 tune --config "$config" --device cuda:0 --fresh --study "$work/warm" --output "$work/warm.yaml" --budget 1s \
  >"$keep/warm.log" 2>&1

tuned 2 110
tested losses two_cards_train_as_one_with_the_whole_batch 40
tuned 1 60
if wanted tuned1 && wanted tuned2; then
  row "scaling: samples/s of two over twice those of one" "$(awk -v one="$(figure "$keep/replicas-1.yaml" measured samples_per_second)" \
    -v two="$(figure "$keep/replicas-2.yaml" measured samples_per_second)" \
    'BEGIN { if (one > 0 && two > 0) printf "%.3f", two / (2 * one); else print "unknown: an answer is missing" }')"
fi
tested overlap an_exchange_beside_the_backward_pass_gives_the_losses_of_one_after_it 30
tested bandwidth exchanges_are_right_and_their_bandwidth_is_printed 25
tested within a_rank_that_is_killed_within_an_exchange_does_not_hang_the_other 25
tested beside a_rank_that_is_killed_beside_an_exchange_does_not_hang_the_other 25
wanted killed && fits 20 "a rank killed in the soak" && killed
row "memory in use on the cards afterwards" "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader | tr '\n' ' ')"
row "seconds in all" "$SECONDS"
