#!/usr/bin/env bash
# The staged search against the grid on GPT-2 medium under three limits, and the memory room on its recordings: the
# tables "search" and "memory model" of the README. Needs `tune` (built with --features cuda) on PATH.
#
#   tests/gpu/search.sh [OUT]      LIMITS="24GiB 40GiB 80GiB" by default
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out"
config=$PWD/configs/gpt2-medium.yaml
table=$PWD/tests/gpu/search_table.py
work=$(mktemp -d); cd "$work" || exit 1

for limit in ${LIMITS:-24GiB 40GiB 80GiB}; do
  for strategy in staged grid; do
    # The loader's axes are fixed, so that both search the same points.
    timeout 300 tune --config "$config" --limit "$limit" --strategy $strategy --fresh \
      --study "$out/$strategy-$limit" --output "$out/$strategy-$limit.yaml" \
      --set 'search.loader_workers=[0]' --set 'search.device_prefetch=[0]' >"$out/$strategy-$limit.log" 2>&1
    echo "$strategy $limit: exit $?" >>"$out/exits.txt"
  done
done
python3 "$table" "$out" ${LIMITS:-24GiB 40GiB 80GiB} | tee "$out/search.txt"

# A candle recording under other allocators, and in PyTorch's own viewer.
set -- "$out"/staged-*/probe-*.trace
tune replay "$1" --compare >"$out/replay-compare.txt" 2>&1
tune inspect "$1" --export "$work/probe.pickle" >"$out/inspect.txt" 2>&1
for view in stats trace segments memory trace_plot segment_plot; do
  if python3 -m torch.cuda._memory_viz $view "$work/probe.pickle" >"$work/$view.out" 2>"$work/$view.err"; then
    echo "_memory_viz $view: ok, $(wc -c <"$work/$view.out") bytes"
  else
    echo "_memory_viz $view: FAILED: $(tail -n 1 "$work/$view.err")"
  fi
done | tee "$out/memory_viz.txt"
cat "$out/exits.txt"
