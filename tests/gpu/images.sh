#!/usr/bin/env bash
# Images on a card: ResNet-50 over 2,000 generated JPEGs (500 × 375), the loader's settings that `staged` finds against
# the full grid of them; and what staging hides: a step's time by `device_prefetch` and `pin_memory`, for ResNet-50 and
# for a small ViT whose step is short against the copy of its batch. Needs `tune` (built with --features cuda) on PATH
# and Python with Pillow and numpy.
#
#   tests/gpu/images.sh [OUT]     STEPS=staging leaves the loader's part out
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-$(mktemp -d)}}
photos=$(mktemp -d)
trap 'rm -rf "$photos"' EXIT
mkdir -p "$out"
python3 - "$photos" <<'P'
import multiprocessing, os, sys
import numpy, PIL.Image

def write(index):
    folder = os.path.join(sys.argv[1], f"class-{index % 20:02}")
    os.makedirs(folder, exist_ok=True)
    rng = numpy.random.default_rng(index)
    coarse = rng.integers(0, 256, (47, 63, 3), dtype=numpy.uint8)
    image = numpy.asarray(PIL.Image.fromarray(coarse).resize((500, 375), PIL.Image.BICUBIC), dtype=numpy.int16)
    image = numpy.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(numpy.uint8)
    PIL.Image.fromarray(image).save(os.path.join(folder, f"{index:05}.jpg"), quality=90)

with multiprocessing.Pool() as pool:
    pool.map(write, range(2000), chunksize=50)
P
du -sh "$photos" | tee "$out/photos.txt"
config() { # NAME MODEL TARGET SEARCH
  cat >"$out/$1.yaml" <<Y
version: 1
name: $1
model: $2
train: {precision: bf16}
data: {source: image_folder, path: $photos, pin_memory: ${5:-true}}
target: {batch_size: $3}
search: {accumulation_steps: [1], batch_size: {start: 100%}, $4}
trial: {steps: 10, soak_steps: 30}
Y
}
run() { # NAME STRATEGY
  timeout 150 tune --config "$out/$1.yaml" --strategy "$2" --fresh --study "$out/$1-$2" \
    --output "$out/$1-$2.yaml" >"$out/$1-$2.log" 2>&1
  echo "$1 $2: exit $?"
}
resnet='{family: resnet, preset: resnet50, image_size: 224, classes: 20}'
vit='{family: vit, preset: vit-s16, image_size: 224, patch_size: 32, layers: 2, classes: 20}'
grid='loader_workers: [0, 1, 2, 4, 8, 12], prefetch_depth: [2, 1], device_prefetch: [0]'
staging='loader_workers: [12], prefetch_depth: [2], device_prefetch: [0, 1]'
if [ "${STEPS:-}" != staging ]; then
  config resnet-loader "$resnet" 64 "$grid"
  run resnet-loader staged
  run resnet-loader grid
fi
config resnet-staging "$resnet" 64 "$staging" auto
run resnet-staging grid
config vit-staging "$vit" 128 "$staging" auto
run vit-staging grid
python3 - "$out" <<'P' | tee "$out/images.txt"
import json, os, sys
for study in ("resnet-loader-staged", "resnet-loader-grid", "resnet-staging-grid", "vit-staging-grid"):
    print(study)
    path = os.path.join(sys.argv[1], study, "journal.jsonl")
    for line in open(path) if os.path.exists(path) else []:
        entry = json.loads(line)
        if entry.get("entry") != "trial_ended":
            continue
        record = entry["record"]
        point, measured = record["spec"]["point"], record["measurement"] or {}
        phases = measured.get("phases", {})
        print(f"  {record['spec']['purpose']:<12} {point['loader_workers']:>2} x {point['prefetch_depth']}, "
              f"{point['device_prefetch']} ahead, {'page-locked' if point['pin_memory'] else 'pageable':<11} "
              f"{measured.get('samples_per_second', 0):9.1f} samples/s, {100 * measured.get('data_wait_fraction', 0):5.1f} % wait, "
              f"step {measured.get('step_ms', {}).get('p50', 0):7.1f} ms of which wait {phases.get('data_wait_ms', 0):6.2f}, "
              f"copy {phases.get('load_ms', 0):6.2f}, forward {phases.get('forward_ms', 0):7.2f}, backward {phases.get('backward_ms', 0):7.2f} ms, "
              f"{measured.get('batches_per_second') or 0:6.1f} batches/s alone, {record['seconds']:.1f} s, {record['outcome']['outcome']}")
P
