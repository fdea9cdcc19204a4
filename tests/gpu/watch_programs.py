"""PyTorch programs with the two faults that `tune watch` is to tell from outside (tests/gpu/watch.sh).

    watch_programs.py fragments     ends out of memory with a fifth of its memory free, in pieces
    watch_programs.py leaks         keeps every step's output; ends after 15 s
    watch_programs.py launch FILE PROGRAM    starts one, writes its process number to FILE, and asks for its end at leisure
"""

import subprocess
import sys
import time


def tensor(torch, size):
    return torch.empty(int(size) // 4, device="cuda", dtype=torch.float32).fill_(1.0)


def work(torch, seconds):
    """Keeps the card busy."""
    matrix = torch.randn(4096, 4096, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.cuda.synchronize()


def fragments():
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.76)
    weights = [tensor(torch, 0.04 * total) for _ in range(10)]
    kept = []
    for step in range(1000):
        # Sequences grow a little, so that no activation fits where one of an earlier step was …
        size = 0.012 * total * 1.004**step
        activations = []
        for _ in range(12):
            activations.append(tensor(torch, size))
            work(torch, 0.03)
        del activations
        # … and what is kept from each step takes half of the place of one, which is then of use to nobody.
        kept.append(tensor(torch, 0.0065 * total))
        stats = torch.cuda.memory_stats()
        print(f"step {step}: allocated {torch.cuda.memory_allocated() / 2**30:.1f}, reserved "
              f"{torch.cuda.memory_reserved() / 2**30:.1f} GiB, {stats['num_alloc_retries']} retries", flush=True)
    return weights


def leaks():
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    weights = tensor(torch, 0.2 * total)
    history = []
    begin = time.monotonic()
    rows = max(1, int(0.001 * total / 4 / 1024))
    while time.monotonic() - begin < 15:
        output = model(torch.randn(512, 1024, device="cuda"))
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # The classic: outputs kept for a metric, on the card.
        history.append(output.detach().repeat(rows // 512 + 1, 1))
        work(torch, 0.1)
    print(f"{len(history)} steps, {torch.cuda.memory_allocated() / 2**30:.1f} GiB", flush=True)
    return weights


def launch(path, program):
    child = subprocess.Popen([sys.executable, __file__, program])
    with open(path, "w") as file:
        file.write(str(child.pid))
    while True:
        time.sleep(0.5)
        if child.poll() is not None:
            return child.returncode


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        sys.exit(launch(sys.argv[2], sys.argv[3]))
    {"fragments": fragments, "leaks": leaks}[sys.argv[1]]()
