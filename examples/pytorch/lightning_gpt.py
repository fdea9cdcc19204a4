"""GPT-2 with random weights under Lightning, on synthetic tokens.

    tune --config examples/pytorch/lightning_gpt.yaml

Two lines make it tunable, marked `tune` below; without a tuner they do nothing. The callback reports each micro-batch,
runs one validation pass and, in the verifying run, writes a checkpoint.
"""

import argparse
import math

import tune_report  # tune 1: before the model is built
import lightning.pytorch as pl
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


class LanguageModel(pl.LightningModule):
    """The model and its optimizer."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(config)

    def training_step(self, tokens: torch.Tensor, _: int) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss

    def validation_step(self, tokens: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(tokens, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=self.device.type == "cuda")


def main() -> None:
    args = arguments()
    pl.seed_everything(tune_report.setting("seed", 0), verbose=False)
    config = GPT2Config(n_positions=args.sequence_length, **SIZES[args.size])

    def loader(samples: int) -> DataLoader:
        return DataLoader(
            Tokens(samples, args.sequence_length, config.vocab_size),
            batch_size=args.batch_size,
            num_workers=args.loader_workers,
            prefetch_factor=max(1, args.prefetch_depth) if args.loader_workers > 0 else None,
            pin_memory=args.pin_memory == "true" and torch.cuda.is_available(),
            persistent_workers=args.loader_workers > 0,
        )

    trainer = pl.Trainer(
        max_steps=math.ceil(args.steps / args.accumulation_steps),
        devices=1,
        precision="bf16-mixed",
        accumulate_grad_batches=args.accumulation_steps,
        callbacks=[tune_report.lightning_callback()],  # tune 2
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LanguageModel(config), loader(args.steps * args.batch_size), loader(2 * args.batch_size))


if __name__ == "__main__":
    main()
