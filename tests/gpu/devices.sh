#!/usr/bin/env bash
# Trials side by side on two cards: the grid and the staged search on GPT-2 medium with one device and with both, the time
# of each and whether the answer is the same. Needs `tune` (built with --features cuda) on PATH and two cards.
#
#   tests/gpu/devices.sh [OUT]      by default STEPS=4; about 300 s
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
config=$PWD/configs/gpt2-medium.yaml
work=$(mktemp -d)
# What was seen so far, however it ends.
trap 'tar czf "$out/all.tgz" -C "$work" --exclude="*.trace" --exclude="*.safetensors" .' EXIT

# Seven pairs of one target with four settings of the loader each, of some seconds a trial; what is staged on the card is
# fixed. The smallest trial and the soak run alone, so the more trials the nearer to a half.
one() { # name, strategy, devices
  local begun=$EPOCHREALTIME
  timeout -k 5 200 tune --config "$config" --strategy "$2" --fresh --study "$work/$1" --output "$work/$1.yaml" \
    --set "devices=$3" --set target.batch_size=64 --set 'search.prefetch_depth=[2]' --set 'search.device_prefetch=[0]' \
    --set "trial.steps=${STEPS:-4}" --set "trial.soak_steps=${STEPS:-4}" >"$work/$1.log" 2>&1
  echo "$1 exit $? seconds $(awk "BEGIN { print $EPOCHREALTIME - $begun }")" | tee -a "$work/times.txt"
}
# Kernels are compiled once on a machine: nobody's time.
timeout 60 tune --config "$config" --strategy grid --fresh --study "$work/warm" --output "$work/warm.yaml" \
  --set 'search.loader_workers=[0]' --budget 1s >"$work/warm.log" 2>&1

# What both devices came to beside one.
compare() { # strategy, most of the time that both may take
python3 - "$work" "$1" "${2:-}" <<'PY' | tee -a "$work/devices.txt"
import re, sys
work, strategy, most = sys.argv[1:]
seconds = {line.split()[0]: float(line.split()[4]) for line in open(f"{work}/times.txt")}
def answer(name):
    try:
        text = open(f"{work}/{name}.yaml").read()
    except OSError:
        return None
    pick = lambda key: re.search(rf"^\s+{key}: (\S+)", text, re.M).group(1)
    return tuple(pick(key) for key in ("batch_size", "accumulation_steps", "loader_workers", "prefetch_depth"))

def trials(name):
    return sum('"entry":"trial_ended"' in line for line in open(f"{work}/{name}/journal.jsonl"))

one, two = f"{strategy}-1", f"{strategy}-2"
ratio = seconds[two] / seconds[one]
# Settings of the loader are as fast as one another here, since the step never waits: which one wins is chance.
same = answer(one) is not None and answer(one)[:2] == answer(two)[:2]
verdict = "" if not most else (" ok" if ratio <= float(most) and same else " FAILED")
print(f"{strategy}: {trials(one)} and {trials(two)} trials, one device {seconds[one]:.1f} s, two {seconds[two]:.1f} s, "
      f"ratio {ratio:.2f}, answers {answer(one)} {answer(two)} {'same size' if same else 'DIFFER'}{verdict}")
PY
}

one grid-1 grid '[cuda:0]'
one grid-2 grid '[cuda:0, cuda:1]'
compare grid 0.6
one staged-1 staged '[cuda:0]'
one staged-2 staged '[cuda:0, cuda:1]'
compare staged
