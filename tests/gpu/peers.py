"""The batch finders of accelerate and Lightning on the models that `tune` tunes, in this process, under the same limit.

    python3 tests/gpu/peers.py WORKLOAD FINDER LIMIT_BYTES

WORKLOAD is `gpt2` (GPT-2 medium, 512 tokens, autocast bf16, fused AdamW) or `resnet50` (224 pixels, channels last,
autocast bf16, SGD). FINDER is `accelerate`, `power`, `binsearch` (both Lightning's), `ladder` (every size in turn, the
truth) or `speed:N` (the throughput of batch N). One JSON line: what was found, the seconds from the process's start, the
sizes tried and how many of them ran out of memory.
"""

import gc
import json
import sys
import time

BEGUN = time.perf_counter()

import torch  # noqa: E402

LENGTH, STEPS = 512, 12


class Workload:
    """One model with its optimizer: `step` is what every finder tries."""

    def __init__(self, name: str) -> None:
        self.name, self.model, self.optimizer = name, None, None

    def build(self) -> None:
        torch.manual_seed(0)
        if self.name == "gpt2":
            from transformers import GPT2Config, GPT2LMHeadModel

            config = GPT2Config(n_positions=LENGTH, n_embd=1024, n_layer=24, n_head=16)
            with torch.device("cuda"):
                self.model = GPT2LMHeadModel(config)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        else:
            from torchvision.models import resnet50

            with torch.device("cuda"):
                self.model = resnet50().to(memory_format=torch.channels_last)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def sample(self) -> torch.Tensor:
        if self.name == "gpt2":
            return torch.randint(50257, (LENGTH,))
        return torch.randn(3, 224, 224)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            if self.name == "gpt2":
                return self.model(input_ids=batch, labels=batch, use_cache=False).loss
            targets = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
            return torch.nn.functional.cross_entropy(self.model(batch.to(memory_format=torch.channels_last)), targets)

    def step(self, batch_size: int) -> None:
        batch = torch.stack([self.sample()] * batch_size).cuda()
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def drop(self) -> None:
        self.model = self.optimizer = None
        gc.collect()
        torch.cuda.empty_cache()


class Tried:
    """Runs sizes and notes how they ended."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.sizes, self.out_of_memory = workload, [], 0

    def __call__(self, batch_size: int, steps: int = 3) -> int:
        self.sizes.append(batch_size)
        try:
            for _ in range(steps):
                self.workload.step(batch_size)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            self.out_of_memory += 1
            raise
        return batch_size

    def fits(self, batch_size: int) -> bool:
        self.workload.drop()
        self.workload.build()
        try:
            self(batch_size)
        except torch.OutOfMemoryError:
            return False
        return True


def accelerate_finder(tried: Tried) -> int:
    from accelerate.utils import find_executable_batch_size

    tried.workload.build()
    return find_executable_batch_size(tried, starting_batch_size=512)()


def lightning_finder(tried: Tried, mode: str) -> int:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import BatchSizeFinder

    workload = tried.workload
    workload.build()

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> torch.Tensor:
            return workload.sample()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = workload.model, 2

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            tried.sizes.append(len(batch))
            return workload.loss(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return workload.optimizer

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader(Samples(), batch_size=self.batch_size)

    module = Module()
    finder = BatchSizeFinder(mode=mode, init_val=2, steps_per_trial=3)
    trainer = pl.Trainer(
        max_steps=1, devices=1, callbacks=[finder], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module)
    found = int(finder.optimal_batch_size)
    tried.sizes = sorted(set(tried.sizes))
    tried.out_of_memory = sum(size > found for size in tried.sizes)
    return found


def ladder(tried: Tried) -> int:
    size = 1
    while tried.fits(2 * size):
        size *= 2
    step = size // 2
    while step:
        if tried.fits(size + step):
            size += step
        step //= 2
    return size


def speed(tried: Tried, batch_size: int) -> float:
    tried.workload.build()
    tried(batch_size)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        tried.workload.step(batch_size)
    torch.cuda.synchronize()
    return batch_size * STEPS / (time.perf_counter() - begun)


def main() -> None:
    name, finder, limit_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
    tried = Tried(Workload(name))
    answer = {"workload": name, "finder": finder}
    if finder.startswith("speed:"):
        answer["samples_per_second"] = speed(tried, int(finder.split(":")[1]))
    else:
        if finder == "accelerate":
            found = accelerate_finder(tried)
        elif finder == "ladder":
            found = ladder(tried)
        else:
            found = lightning_finder(tried, finder)
        answer.update(batch_size=found, seconds=time.perf_counter() - BEGUN, tried=len(tried.sizes),
                      out_of_memory=tried.out_of_memory)
    answer["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
