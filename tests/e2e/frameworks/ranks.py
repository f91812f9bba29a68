"""Two ranks on one machine: `ranks.py FOLDER KIND...` starts them, and each trains in the kinds one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORLD = 2


def start() -> int:
    """Start a process for each rank and wait for them. torch is not imported here: that takes its time."""
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(WORLD)})
        for rank in range(WORLD)
    ]
    folder = Path(sys.argv[1])
    for rank, process in enumerate(ranks):
        begun = folder / f"begun-pid{rank}"
        begun.write_text(str(process.pid))
        # Whoever waits for the file reads a whole number, never an empty file.
        begun.rename(folder / f"pid{rank}")
    return max(process.wait() for process in ranks)


if __name__ == "__main__" and "RANK" not in os.environ:
    sys.exit(start())

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diary import Diary, twice
from loops import Net, batches, loss_of, optimizer_of


def over(diary: Diary) -> bool:
    """What the first rank says goes for all."""
    over_here = torch.tensor(float(diary.over()))
    dist.broadcast(over_here, src=0)
    return bool(over_here)


def train(diary: Diary, model) -> None:
    optimizer = optimizer_of(model, diary)
    for rows, labels in batches(diary):
        optimizer.zero_grad()
        loss = loss_of(model(rows + dist.get_rank()), labels)
        loss.backward()
        optimizer.step()
        diary.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        diary.loss(mean)
        if over(diary):
            return


def replicated(diary: Diary) -> None:
    torch.manual_seed(0)
    train(diary, DistributedDataParallel(Net(diary)))


def sharded(diary: Diary) -> None:
    torch.manual_seed(0)
    train(diary, fully_shard(Net(diary)))


KINDS = {"replicated": replicated, "sharded": sharded}

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=WORLD)
    for name in sys.argv[2:]:
        twice(folder, name, KINDS[name], rank)
    dist.destroy_process_group()
