#!/usr/bin/env bash
# `tune watch` over a PyTorch program that fragments and one that leaks, and `tune doctor`, on this machine's first card.
# Needs `tune` (any build) on PATH and a python3 with torch. Takes less than a minute.
#
#   tests/gpu/watch.sh [OUT]
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
program=$PWD/tests/gpu/watch_programs.py
failed=0
expect() { # WHAT FOUND WANTED
  if [ "$2" = "$3" ]; then echo "ok      $1: $2"; else echo "FAILED  $1: $2, expected $3"; failed=1; fi
}
found() { # NAME: the kinds of findings in a recording's end
  python3 - "$out/$1.jsonl" <<'P'
import json, sys
end = [line for line in map(json.loads, open(sys.argv[1])) if line["line"] == "end"][-1]
print(" ".join(f'{finding["finding"]}:{finding["certainty"]}' for finding in end["findings"]) or "nothing")
P
}
watched() { # NAME COMMAND…
  local name=$1; shift
  "$@" >"$out/$name-program.log" 2>&1 &
  local pid=$!
  # The child of a launcher, where there is one.
  for _ in $(seq 100); do [ -s "$out/$name.pid" ] && { pid=$(cat "$out/$name.pid"); break; }; [ "$1" = env ] && break; sleep 0.05; done
  timeout 50 tune watch --pid "$pid" --interval 250ms --record "$out/$name.jsonl" >"$out/$name-watch.log" 2>&1
  expect "$name: exit code of the watch" $? 0
  wait
}

# Its launcher asks for the exit code twice a second, as torchrun does, so that the watch may see it.
rm -f "$out/fragments.pid"
watched fragments python3 "$program" launch "$out/fragments.pid" fragments
expect "fragments: what is concluded" "$(found fragments | tr ' ' '\n' | grep -c '^fragmentation_like')" 1
tail -n 25 "$out/fragments-watch.log"
grep -h OutOfMemory "$out/fragments-program.log" | tail -n 1 >"$out/error.txt"
tune explain-oom "$out/error.txt" | tee "$out/explained.txt"

watched leaks env python3 "$program" leaks
expect "leaks: what is concluded" "$(found leaks | tr ' ' '\n' | grep -c '^leak:')" 1
tail -n 15 "$out/leaks-watch.log"

# The whole card until Ctrl-C, and the recordings judged again.
timeout --preserve-status -s INT 2 tune watch --interval 500ms --json >"$out/card.jsonl" 2>"$out/card.log"
expect "interrupted" $? 130
for name in fragments leaks; do
  tune watch --replay "$out/$name.jsonl" --html "$out/$name.html" --json >"$out/$name-replayed.json"
  expect "$name: judged again" $? 0
done

tune doctor | tee "$out/doctor.txt"
code=${PIPESTATUS[0]}
tune doctor --json >"$out/doctor.json"
expect "doctor: both forms agree" $? "$code"
env CUDA_VISIBLE_DEVICES= tune doctor >"$out/doctor-hidden.txt"
expect "doctor: no visible card" $? 4
env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:true tune doctor >"$out/doctor-conf.txt"
expect "doctor: settings that PyTorch refuses" $? 3
exit $failed
