"""GPT-2 of Hugging Face's transformers with random weights, trained on synthetic tokens by a plain PyTorch loop.

    tune --config examples/pytorch/gpt2.yaml
    tune export --format env recommendation.yaml              # the values; `eval` them, then launch the script as it is

Three lines make it tunable, marked `tune` below; without a tuner they do nothing.
"""

import argparse

import tune_report  # tune 1: before the model is built
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {
    "tiny": {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000},
    "small": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
}


def arguments() -> argparse.Namespace:
    """What can be tuned defaults to the tuned value, in a trial and after `tune export --format env`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1000, help="micro-batches")
    parser.add_argument("--batch-size", type=int, default=tune_report.setting("batch_size", 8))
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
        return torch.randint(self.vocabulary, (self.length,), generator=generator)


def main() -> None:
    args = arguments()
    torch.manual_seed(tune_report.setting("seed", 0))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    config = GPT2Config(n_positions=args.sequence_length, **SIZES[args.size])
    with device:
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")

    loader = DataLoader(
        Tokens(args.steps * args.batch_size, args.sequence_length, config.vocab_size),
        batch_size=args.batch_size,
        num_workers=args.loader_workers,
        prefetch_factor=max(1, args.prefetch_depth) if args.loader_workers > 0 else None,
        pin_memory=args.pin_memory == "true" and device.type == "cuda",
        persistent_workers=args.loader_workers > 0,
    )

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    @torch.no_grad()
    def evaluate() -> torch.Tensor:
        model.eval()
        held_out = torch.stack([loader.dataset[-1 - index] for index in range(args.batch_size)])
        loss = loss_of(held_out.to(device))
        model.train()
        return loss

    def checkpoint(path: str) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    model.train()
    with tune_report.run(evaluate, checkpoint) as t:  # tune 2
        for step, tokens in enumerate(loader, start=1):
            loss = loss_of(tokens.to(device, non_blocking=True))
            (loss / args.accumulation_steps).backward()
            if step % args.accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            t.step(len(tokens), loss)  # tune 3: after each micro-batch
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
