#!/bin/sh
# Tunes once, then trains with the answer.
#   examples/shell/train.sh CONFIG COMMAND [ARGUMENT...]
# The command finds the configuration in its environment (TUNE_BATCH_SIZE, TUNE_ACCUMULATION_STEPS, …).
set -eu

config=$1
shift
recommendation=${TUNE_RECOMMENDATION:-recommendation.yaml}

# A recommendation that is missing, not safe or made for another configuration is no use: tune (again).
if ! tune export --config "$config" "$recommendation" >/dev/null 2>&1; then
    tune --config "$config" --output "$recommendation"
fi

# Two statements: `eval "$(…)"` would swallow a failure even under `set -e`.
tune_env=$(tune export --format env --config "$config" "$recommendation")
eval "$tune_env"

echo "training with batch size $TUNE_BATCH_SIZE x $TUNE_ACCUMULATION_STEPS, $TUNE_LOADER_WORKERS loader workers"
exec "$@"
