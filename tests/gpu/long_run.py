"""A GPT in plain PyTorch whose batches vary in length, for tests/long_run_commands.rs.

Each batch has the length of its line in `--lengths-file`; in a probe, that of `--sequence-length`. Attention is written
out, since the scores of all heads are then tensors of B·H·T² elements: flash attention pads lengths to 128, which no
polynomial of T is. No dropout, fixed seeds, an AdamW step after every batch.
"""

import argparse
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
import tune_report  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


class Block(nn.Module):
    """Attention and two linear layers, each after a norm. B is the batch, T the length, D the width, H the heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()  # [B, H, T, D / H]
        scores = (q @ k.transpose(2, 3)) * (width // self.heads) ** -0.5  # [B, H, T, T]
        weights = torch.softmax(scores.masked_fill(mask[:length, :length], float("-inf")), dim=3)  # [B, H, T, T]
        mixed = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(batch, length, width)  # [B, T, D]
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Input and output share their weights."""

    def __init__(self, args):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(args.vocabulary, args.width), nn.Embedding(args.max_length, args.width)
        self.blocks = nn.ModuleList([Block(args.width, args.heads) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.width)
        mask = torch.ones(args.max_length, args.max_length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        places = torch.arange(inputs.shape[1], device=tokens.device)
        x = self.tokens(inputs) + self.positions(places)  # [B, T, D]
        for block in self.blocks:
            x = block(x, self.mask)
        logits = self.norm(x) @ self.tokens.weight.t()  # [B, T, V]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=tune_report.setting("batch_size", 8))
    parser.add_argument("--steps", type=int, default=tune_report.setting("steps", 300))
    parser.add_argument("--sequence-length", type=int, default=tune_report.setting("sequence_length", 0))
    parser.add_argument("--lengths-file", required=True, help="the length of each batch, one a line")
    parser.add_argument("--max-length", type=int, default=1024)
    for name, value in (("layers", 8), ("width", 512), ("heads", 8), ("vocabulary", 50257)):
        parser.add_argument("--" + name, type=int, default=value)
    return parser.parse_args()


def lengths(args):
    """The length of each batch."""
    if args.sequence_length > 0:
        return [args.sequence_length] * args.steps
    with open(args.lengths_file) as file:
        known = [int(line) for line in file if line.strip()]
    return [known[step % len(known)] for step in range(args.steps)]


def train(args, device, on_step, on_begin=lambda: None):
    """The loop. `on_begin()` is called when the model is there, `on_step(samples, loss)` after each batch."""
    torch.manual_seed(0)
    with device:
        model = Gpt(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    on_begin()
    for length in lengths(args):
        # One token more than the inputs have: what follows the last.
        tokens = torch.randint(args.vocabulary, (args.batch_size, length + 1)).to(device)  # [B, T + 1]
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        on_step(len(tokens), loss)


def main():
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with contextlib.ExitStack() as stack:
        reported = tune_report.run()
        train(args, device, reported.step, lambda: stack.enter_context(reported))


if __name__ == "__main__":
    main()
