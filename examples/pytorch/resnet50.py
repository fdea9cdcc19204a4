"""ResNet-50 of torchvision on synthetic images: channels last, autocast to bf16, SGD, a plain PyTorch loop.

    tune --config examples/pytorch/resnet50.yaml

cuDNN chooses its algorithms by the shapes, so what a step allocates depends on the batch size in more than its sizes:
expect an `affine` forecast here, not an `exact` one.
"""

import argparse

import tune_report  # tune 1: before the model is built
import torch
import torchvision
from torch.utils.data import DataLoader, Dataset

CLASSES = 1000


def arguments() -> argparse.Namespace:
    """What can be tuned defaults to the tuned value, in a trial and after `tune export --format env`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=1000, help="micro-batches")
    parser.add_argument("--batch-size", type=int, default=tune_report.setting("batch_size", 32))
    parser.add_argument("--accumulation-steps", type=int, default=tune_report.setting("accumulation_steps", 1))
    parser.add_argument("--loader-workers", type=int, default=tune_report.setting("loader_workers", 0))
    parser.add_argument("--prefetch-depth", type=int, default=tune_report.setting("prefetch_depth", 2))
    parser.add_argument("--pin-memory", choices=["true", "false"], default=tune_report.setting("pin_memory", "true"))
    return parser.parse_args()


class Images(Dataset):
    """Random images, made once, taken out in turn with a random crop and flip as real loaders do."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size
        self.pool = torch.randint(256, (64, 3, size + 32, size + 32), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        top, left, flip = torch.randint(32, (3,), generator=generator).tolist()
        image = self.pool[index % len(self.pool), :, top : top + self.size, left : left + self.size]
        return (image.flip(-1) if flip % 2 else image.clone()), index % CLASSES


def main() -> None:
    args = arguments()
    torch.manual_seed(tune_report.setting("seed", 0))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = torchvision.models.resnet50(weights=None).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    criterion = torch.nn.CrossEntropyLoss()

    loader = DataLoader(
        Images(args.steps * args.batch_size, args.image_size),
        batch_size=args.batch_size,
        num_workers=args.loader_workers,
        prefetch_factor=max(1, args.prefetch_depth) if args.loader_workers > 0 else None,
        pin_memory=args.pin_memory == "true" and device.type == "cuda",
        persistent_workers=args.loader_workers > 0,
    )

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = images.to(device, non_blocking=True).to(memory_format=torch.channels_last).float().div_(127.5).sub_(1)
        with torch.autocast(device.type, torch.bfloat16):
            return criterion(model(images), labels.to(device, non_blocking=True))

    held_out = next(iter(DataLoader(loader.dataset, batch_size=args.batch_size)))

    @torch.no_grad()
    def evaluate() -> torch.Tensor:
        model.eval()
        loss = loss_of(*held_out)
        model.train()
        return loss

    def checkpoint(path: str) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    model.train()
    with tune_report.run(evaluate, checkpoint) as t:  # tune 2
        for step, (images, labels) in enumerate(loader, start=1):
            loss = loss_of(images, labels)
            (loss / args.accumulation_steps).backward()
            if step % args.accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            t.step(len(images), loss)  # tune 3: after each micro-batch
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
