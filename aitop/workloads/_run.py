"""What the bundled runs share: their options, the lines they print, and two ranks on one machine."""

from __future__ import annotations

import argparse
import socket
import time

import torch
import torch.distributed as dist

RANKS = 2


def options(words: str, fixed: str, *, batch_size: int | None = None, unit: str = "steps") -> argparse.ArgumentParser:
    """The command line of a run. `words` describe the run, `fixed` what is different with --fixed."""
    parser = argparse.ArgumentParser(description=words)
    if batch_size is not None:
        parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--steps", type=int, default=0, help=f"stop after so many {unit} (default: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help=fixed)
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Seed torch, and leave the other cores to the loader workers and ranks."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)


class Progress:
    """Counts steps of so many `units`, and prints the first and then one in `every`: how far the run is, how fast."""

    def __init__(self, last: int = 0, every: int = 20, *, quiet: bool = False, units: int = 1, unit: str = "steps"):
        self.last = last
        self.every = every
        self.quiet = quiet
        self.units = units
        self.unit = unit
        self.count = self.printed = 0
        self.since = time.perf_counter()

    def step(self, loss=None) -> bool:
        """Count a step; whether it was the last one to make."""
        self.count += 1
        if not self.quiet and (self.count == 1 or self.count % self.every == 0):
            now = time.perf_counter()
            rate = self.units * (self.count - self.printed) / (now - self.since)
            words = "" if loss is None else f" loss {loss.item():.4f},"
            print(f"step {self.count}:{words} {rate:.1f} {self.unit}/s", flush=True)
            self.since, self.printed = now, self.count
        return self.count == self.last


def spawn(train, args: argparse.Namespace) -> None:
    """Call train(rank, args) in a process for each rank, joined over gloo."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    torch.multiprocessing.spawn(_rank, args=(train, port, args), nprocs=RANKS)


def _rank(rank: int, train, port: int, args: argparse.Namespace) -> None:
    prepare(args)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    train(rank, args)
