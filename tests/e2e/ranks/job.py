"""A data-parallel run of two or more ranks with a planted fault: `job.py FAULT [--launch spawn|processes]`.

Under torchrun it is a rank; with `--launch` it starts its ranks itself. `--after` steps the fault sets in. More ranks
than cores would only show that these are too few, so beyond two a pause in the forward pass stands in for a device that
computes while the host waits. With `contention` the last rank is kept to the last core; whoever starts this burns it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import threading
import time

SLOW = ("input", "compute", "batches", "contention", "comm")
HANGS = ("lock", "skip", "died", "killed", "mismatch", "worker")
# Four ranks on two cores exchange for 5 to 15 ms; a healthy job has more to do than that.
DEVICE_SECONDS, HEALTHY_SECONDS = 0.015, 0.06


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=("healthy", *SLOW, *HANGS))
    parser.add_argument("--launch", choices=("spawn", "processes"))
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--after", type=int, default=20)
    parser.add_argument("--port", type=int, default=29611)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--patience", type=int, default=1800, help="seconds after which ranks give up on each other")
    parser.add_argument("--alone", action="store_true", help="exchange with nobody: collectives return at once")
    parser.add_argument("--mended", action="store_true", help="the same without the fault, where it slows the run")
    return parser.parse_args()


def start(args: argparse.Namespace) -> int:
    """A process for each rank, as a script of somebody's own would start them."""
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(args.port),
        "WORLD_SIZE": str(args.world),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(args.world)
    ]
    return max(process.wait() for process in ranks)


if __name__ == "__main__":
    options = arguments()
    if options.launch == "processes" and "RANK" not in os.environ:
        sys.exit(start(options))  # without torch, which takes its time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

guard = threading.Lock()


class Rows(Dataset):
    """Rows that take a moment to read: a long one where `slow`, for ever where `stuck_at` is reached."""

    def __init__(self, slow: bool, stuck_at: int) -> None:
        self.slow = slow
        self.stuck_at = stuck_at

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if 0 < self.stuck_at <= index:
            guard.acquire()  # in a worker
        if self.slow:
            time.sleep(0.001)
        return torch.full((256,), float(index % 7))


class Device(nn.Module):
    """Stands in for a device that is at work for `seconds` with a `batch` of rows while the host waits."""

    def __init__(self, seconds: float, batch: int) -> None:
        super().__init__()
        self.seconds_each = seconds / batch

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds_each * len(rows))
        return rows


def network(fault: str, world: int, batch: int) -> nn.Sequential:
    width = (6000 if world <= 2 else 2400) if fault == "comm" else 512
    layers = (nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, 8))
    seconds = HEALTHY_SECONDS if fault == "healthy" else DEVICE_SECONDS
    return nn.Sequential(*layers, *([Device(seconds, batch)] if world > 2 else []))


def keep_to_cores(odd: bool) -> None:
    """The odd rank alone on the last core, the other ranks on the rest."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:] if odd else cores[:-1])


def extra_work(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """What only one rank does."""
    for _ in range(8):
        rows = rows + 0.001 * model.module[2](torch.relu(model.module[0](rows)))[:, :1]
    return rows


def at_once(gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """What a bucket comes back as where ranks exchange with nobody."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(gradients)
    return future


def train(rank: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    odd, fault = rank == args.world - 1 and not args.mended, args.fault
    if fault == "contention":
        keep_to_cores(rank == args.world - 1)
    apart, healthy = fault == "comm" and args.mended, fault == "healthy"
    whole = 512 if args.world <= 2 else 64
    rows_of = {"comm": 16, "input": 16, "healthy": whole, "contention": whole // 2, "batches": whole // 2}
    batch = rows_of.get(fault, 64)
    model = DistributedDataParallel(network(fault, args.world, batch))
    if args.alone:
        model.register_comm_hook(None, lambda _, bucket: at_once(bucket.buffer()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    worker = fault == "worker" and odd
    if worker:
        guard.acquire()
    batch *= 3 if fault == "batches" and odd else 1
    loader = DataLoader(
        Rows(fault == "input" and odd, args.after * batch if worker else 0),
        batch_size=batch,
        num_workers=2 if fault == "worker" else 0,
    )
    for step, rows in enumerate(loader):
        if fault == "compute" and odd and step > args.after:
            rows = extra_work(model, rows)
        if fault == "lock" and odd and step == args.after:
            guard.acquire()
            guard.acquire()  # for ever
        if fault in ("died", "killed") and step == args.after:
            if odd:
                os._exit(0) if fault == "died" else os.kill(os.getpid(), signal.SIGKILL)
            dist.new_group(list(range(args.world)))
        optimizer.zero_grad()
        with model.no_sync() if apart else contextlib.nullcontext():
            loss = model(rows).square().mean()
            loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if apart:
            pass
        elif healthy:
            if step % 10 == 0:
                dist.all_reduce(mean)
        elif fault == "mismatch" and odd and step == args.after:
            dist.all_gather_object([None] * args.world, "done")
        else:
            dist.all_reduce(mean)
        if not (apart or healthy) and not (fault == "skip" and odd and step == args.after):
            dist.barrier()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: {mean.item():.4f}", flush=True)
        if step + 1 == args.steps:
            return


def run(rank: int, args: argparse.Namespace) -> None:
    patience = datetime.timedelta(seconds=args.patience)
    if args.alone:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=args.world)
    elif "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=patience)
    else:
        address = f"tcp://127.0.0.1:{args.port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=args.world, timeout=patience)
    train(dist.get_rank(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    if options.launch == "spawn":
        torch.multiprocessing.spawn(run, args=(options,), nprocs=options.world)
    else:
        run(int(os.environ.get("RANK", "0")), options)
