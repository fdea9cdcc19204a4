#!/bin/sh
# Tunes where there is no answer for this configuration and this device yet, then trains with it.
#
#   examples/shell/train.sh CONFIG COMMAND [ARGUMENT...]
#
# The command finds the settings in its environment (TUNE_BATCH_SIZE, TUNE_ACCUMULATION_STEPS, …). The answer is kept in
# $TUNE_RECOMMENDATION, by default recommendation.yaml.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG COMMAND [ARGUMENT...]" >&2
    exit 2
fi
config=$1
shift
recommendation=${TUNE_RECOMMENDATION:-recommendation.yaml}

# A study with a safe answer for the same configuration, device and driver offers it again without a trial; anything
# else is searched anew. Where nothing is safe the exit code is not 0, and the script stops here with it.
tune --config "$config" --output "$recommendation" >&2

# Two statements: `eval "$(…)"` would swallow a failure even under `set -e`. With --config a file that is stale, because
# somebody else wrote it in the meantime, is refused as well.
tune_env=$(tune export --format env --config "$config" "$recommendation")
eval "$tune_env"

echo "training with batch size $TUNE_BATCH_SIZE x $TUNE_ACCUMULATION_STEPS, $TUNE_LOADER_WORKERS loader workers"
exec "$@"
