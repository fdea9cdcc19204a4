#!/usr/bin/env bash
# Whole runs of varying lengths on a card, 300 steps of 64 to 1024 tokens each, held against what seven tiny probes foretell:
# a GPT of candle on the driver's pool, and one of PyTorch under several settings of its allocator and under a limit that the
# defaults do not survive. Needs the test binaries `gpu` (built with --features cuda) and `long_run_commands` (any build)
# on PATH, and a python3 with torch. Build both with
#   cargo test --release --features cuda --no-run --test gpu --test long_run_commands
#
#   tests/gpu/long_run.sh [OUT]      by default PARTS="candle commands", STEPS=300, SECONDS_IN_ALL=400
#
# Logs, tables, a series of each run (CSV) and the recordings go to OUT, and together into OUT/all.tgz. What failed says
# FAILED, and the rest is done all the same. `tests/gpu/long_run.sh` never begins what it has no time for.
#
# Without a card: PARTS=commands LONG_RUN_DEVICE=cpu LONG_RUN_LIMIT_GIB=16 STEPS=20 SECONDS_IN_ALL=1000
#   LONG_RUN_PROGRAM="python3 tests/gpu/long_run_pretend.py" LONG_RUN_PRELOAD="torch torch._subclasses.fake_tensor"
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out/long_run"
in_all=${SECONDS_IN_ALL:-400}
begun=$SECONDS
left() { echo $((in_all - (SECONDS - begun))); }
export LONG_RUN_OUT=$out/long_run LONG_RUN_STEPS=${STEPS:-300} RUST_BACKTRACE=0
export PYTHONDONTWRITEBYTECODE=1
log=$LONG_RUN_OUT
failed=0

{ date -u; nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader
  python3 -c 'import sys, torch; print(sys.version.split()[0], "torch", torch.__version__, "CUDA", torch.version.cuda)'
  env | grep -E '^(CUBLAS|PYTORCH|CUDA|TORCH)' ; } >"$log/machine.txt" 2>&1

part() { # NAME SECONDS COMMAND…: its log, its exit status, and never longer than there is time
  local name=$1 most=$2 from=$SECONDS; shift 2
  [ "$(left)" -lt "$most" ] && most=$(left)
  if [ "$most" -lt 20 ]; then
    echo "FAILED $name: no time left"; failed=1; return
  fi
  LONG_RUN_SECONDS=$((most - 25)) timeout -k 5 "$most" "$@" >"$log/$name.log" 2>&1
  local status=$?
  echo "$name: exit $status in $((SECONDS - from)) s"
  [ "$status" = 0 ] || failed=1
}

for name in ${PARTS:-candle commands}; do
  case $name in
    candle)
      part candle 170 gpu --exact long_run::three_hundred_steps_of_varying_lengths_are_forecast_from_seven_tiny_probes \
        --ignored --nocapture
      grep -vE '^(running|test |failures|$)' "$log/candle.log" | tail -n 40 ;;
    commands)
      part commands 400 long_run_commands --exact card::a_run_of_pytorch_is_forecast_from_seven_tiny_probes --ignored --nocapture
      # The table is on the disk line by line, so that it is there whatever ended the part.
      cat "$log/commands.txt" 2>/dev/null || tail -n 40 "$log/commands.log" ;;
    *) echo "no part $name"; failed=1 ;;
  esac
done 2>&1 | tee "$log/table.txt"
grep -q FAILED "$log/table.txt" && failed=1
grep -qE ': exit [^0]' "$log/table.txt" && failed=1
# A file that is too large to be brought back would cost all others.
find "$log" -type f -size +8M -print -delete | sed 's/^/too large to keep: /'
tar -C "$out" -czf "$out/all.tgz" long_run && ls -l "$out/all.tgz"
exit "$failed"
