"""GPT-2 with random weights under Hugging Face's `Trainer`, on synthetic tokens.

    tune --config examples/pytorch/hf_trainer.yaml

Two lines make it tunable, marked `tune` below; without a tuner they do nothing. The callback reports each micro-batch,
runs one evaluation pass and, in the verifying run, writes a checkpoint.
"""

import argparse
import math

import tune_report  # tune 1: before the model is built
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

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
    parser.add_argument("--output", default="hf-output")
    return parser.parse_args()


class Tokens(Dataset):
    """Random tokens, the same ones for the same index."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    args = arguments()
    config = GPT2Config(n_positions=args.sequence_length, **SIZES[args.size])
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=args.output,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulation_steps,
            max_steps=math.ceil(args.steps / args.accumulation_steps),
            dataloader_num_workers=args.loader_workers,
            dataloader_prefetch_factor=max(1, args.prefetch_depth) if args.loader_workers > 0 else None,
            dataloader_pin_memory=args.pin_memory == "true",
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            prediction_loss_only=True,
            logging_steps=100,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=tune_report.setting("seed", 0),
        ),
        train_dataset=Tokens(args.steps * args.batch_size, args.sequence_length, config.vocab_size),
        eval_dataset=Tokens(2 * args.batch_size, args.sequence_length, config.vocab_size),
    )
    trainer.add_callback(tune_report.trainer_callback(trainer))  # tune 2
    trainer.train()


if __name__ == "__main__":
    main()
