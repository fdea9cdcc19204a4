#!/usr/bin/env python3
"""Images a second of PyTorch's DataLoader and of batchtune's loader, on the same files and in one run.

    cargo build --release --example loader_rate
    target/release/examples/loader_rate photos /tmp/photos 500
    tests/bench/pytorch_loader.py target/release/examples/loader_rate /tmp/photos --workers 0,1,2

Needs torch, torchvision and Pillow. Both decode (Pillow, as torchvision's ImageFolder does by default), crop at random
(scale 0.08 to 1, ratio 3/4 to 4/3), resize to 224 x 224 with antialiased bilinear, mirror, normalise and collate to batches
of 64. The two take turns, so that a machine that gets busier hits both; the median of the rounds is printed.
With 0 workers the calling thread loads, and PyTorch is held to one thread: the row "a core" has the images a second of
processor time there, which a busy machine changes least. The other rows are by the clock.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

BATCH_SIZE = 64


def pytorch_rates(folder, workers, seconds):
    """Images a second, after the first batch of every worker as batchtune measures itself: by the clock, and of this
    process's own time."""
    torch.set_num_threads(1)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224, antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    dataset = ImageFolder(folder, transform)
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, drop_last=True, num_workers=workers,
                        prefetch_factor=2 if workers else None, persistent_workers=workers > 0)
    begun = time.perf_counter()
    warm_up, images, started, used = max(workers, 1), 0, None, None
    while True:
        for input, _ in loader:
            now = time.perf_counter()
            if warm_up:
                warm_up, started, used = warm_up - 1, now, time.process_time()
                continue
            images += len(input)
            if now - begun >= seconds:
                return images / (now - started), images / (time.process_time() - used)


def batchtune_rates(binary, folder, workers, seconds):
    command = [binary, "rate", folder, str(workers), str(seconds)]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return answer["images_per_second"], answer["images_per_processor_second"]


def print_row(name, theirs, ours):
    theirs, ours = statistics.median(theirs), statistics.median(ours)
    print(f"| {name} | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the built example `loader_rate`")
    parser.add_argument("folder", help="class folders of images")
    parser.add_argument("--workers", default="0,1,2", help="numbers of workers (default: 0,1,2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, batches of {BATCH_SIZE}, {arguments.rounds} rounds of {arguments.seconds:g} s")
    print("| workers | PyTorch, images/s | batchtune, images/s | ratio |")
    print("|---|---|---|---|")
    for workers in [int(number) for number in arguments.workers.split(",")]:
        theirs, ours = [], []
        for _ in range(arguments.rounds):
            theirs.append(pytorch_rates(arguments.folder, workers, arguments.seconds))
            ours.append(batchtune_rates(arguments.binary, arguments.folder, workers, arguments.seconds))
        if workers == 0:
            print_row("a core", [rates[1] for rates in theirs], [rates[1] for rates in ours])
        print_row(workers, [rates[0] for rates in theirs], [rates[0] for rates in ours])


if __name__ == "__main__":
    main()
