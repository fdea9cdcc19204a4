"""A transformer with random weights, trained on synthetic tokens by several processes: torch's DistributedDataParallel.

    tune --config examples/pytorch/ddp.yaml
    tune_env=$(tune export --format env recommendation.yaml) && eval "$tune_env"
    torchrun --standalone --nproc-per-node="$TUNE_REPLICAS" examples/pytorch/ddp.py

The same three lines as in `gpt2.py` make it tunable, marked `tune` below; every rank runs them. Without cards it runs on
the CPU, over gloo.
"""

import argparse
import atexit
import contextlib
import os

import tune_report  # tune 1: before the model is built
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIZES = {"tiny": (64, 2, 2, 1000), "small": (768, 12, 12, 50257), "medium": (1024, 24, 16, 50257)}
"""Width, layers, heads, vocabulary."""


def arguments() -> argparse.Namespace:
    """What can be tuned defaults to the tuned value, in a trial and after `tune export --format env`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1000, help="micro-batches of a rank")
    parser.add_argument("--batch-size", type=int, default=tune_report.setting("batch_size", 8), help="of a micro-batch")
    parser.add_argument("--accumulation-steps", type=int, default=tune_report.setting("accumulation_steps", 1))
    parser.add_argument("--loader-workers", type=int, default=tune_report.setting("loader_workers", 0))
    parser.add_argument("--prefetch-depth", type=int, default=tune_report.setting("prefetch_depth", 2))
    parser.add_argument("--pin-memory", choices=["true", "false"], default=tune_report.setting("pin_memory", "true"))
    return parser.parse_args()


class Tokens(Dataset):
    """Random tokens, the same ones for the same index."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(self.vocabulary, (self.length + 1,), generator=generator)


class Transformer(nn.Module):
    """A causal language model; gives the loss of its batch."""

    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        width, layers, heads, self.vocabulary = SIZES[size]
        self.tokens = nn.Embedding(self.vocabulary, width)
        self.positions = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, self.vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        hidden = self.tokens(inputs) + self.positions.weight
        hidden = self.blocks(hidden, mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def join() -> torch.device:
    """Meets the other ranks, and gives this one's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    has_cards = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if has_cards else torch.device("cpu")
    if has_cards:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_cards else "gloo", device_id=device if has_cards else None)
    atexit.register(dist.destroy_process_group)
    return device


def main() -> None:
    args = arguments()
    device = join()
    torch.manual_seed(tune_report.setting("seed", 0))
    model = Transformer(args.size, args.sequence_length).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")

    samples = args.steps * args.batch_size * dist.get_world_size()
    data = Tokens(samples, args.sequence_length, model.module.vocabulary)
    loader = DataLoader(
        data,
        batch_size=args.batch_size,
        sampler=DistributedSampler(data, drop_last=True),
        num_workers=args.loader_workers,
        prefetch_factor=max(1, args.prefetch_depth) if args.loader_workers > 0 else None,
        pin_memory=args.pin_memory == "true" and device.type == "cuda",
        persistent_workers=args.loader_workers > 0,
    )

    def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return model(tokens.to(device, non_blocking=True))

    @torch.no_grad()
    def evaluate() -> torch.Tensor:
        model.eval()
        # Without the wrapper: ranks may then differ in how much they evaluate.
        loss = loss_of(model.module, torch.stack([data[-1 - index] for index in range(args.batch_size)]))
        model.train()
        return loss

    def checkpoint(path: str) -> None:
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)

    model.train()
    with tune_report.run(evaluate, checkpoint) as t:  # tune 2
        for step, tokens in enumerate(loader, start=1):
            is_update = step % args.accumulation_steps == 0
            # Gradients are averaged over the ranks once an update.
            with contextlib.nullcontext() if is_update else model.no_sync():
                loss = loss_of(model, tokens)
                (loss / args.accumulation_steps).backward()
            if is_update:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            t.step(len(tokens), loss)  # tune 3: after each micro-batch
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
