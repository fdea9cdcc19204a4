"""examples/pytorch/ddp.py with a fault on one rank, in the middle of training.

    torchrun --standalone --nproc-per-node=2 tests/gpu/ranks_broken.py FAULT [options of ddp.py]

FAULT is one of: out_of_memory, kill, hang, error. It comes on rank 1 before its fourth step ends.
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))

import tune_report  # noqa: E402
import torch  # noqa: E402
import ddp  # noqa: E402

FAULT_AT = 3


def break_down(fault):
    if fault == "out_of_memory" and torch.cuda.is_available():
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    elif fault == "out_of_memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32768.00 GiB.")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "error":
        raise ValueError("of the script's own")


def main():
    fault = sys.argv.pop(1)
    step = tune_report._TunedRun.step

    def broken_step(run, samples, loss=None):
        if os.environ.get("RANK") == "1" and run._session.steps_done == FAULT_AT:
            break_down(fault)
        step(run, samples, loss)

    tune_report._TunedRun.step = broken_step
    ddp.main()


if __name__ == "__main__":
    main()
