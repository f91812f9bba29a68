"""What the hook adds to a training step: plain, hooked and after removal, in turn within one process.

    python tests/bench/hook_cost.py [--rounds 30] [--model mlp|transformer]

Each round runs the three variants one after the other in changing order; printed are medians over the rounds and the
ratios to plain of the same round, so that a slow moment of the machine meets all three.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import aitop.hook


class Rows(Dataset):
    def __init__(self, count: int, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(count, width, generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        return self.rows[index], index % 10


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, rows):
        return self.net(rows)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(192, 4, 512, batch_first=True, dropout=0.0)
        self.embed = nn.Linear(64, 192)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(192, 10)

    def forward(self, rows):
        return self.head(self.encoder(self.embed(rows).unsqueeze(1).expand(-1, 32, -1)).mean(1))


def steps_of(model, loader):
    """An endless training run; one step each `next`."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss_of = nn.CrossEntropyLoss()
    while True:
        for rows, labels in loader:
            loss = loss_of(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield


def microseconds(run, count: int) -> float:
    """Median time of `count` steps."""
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        next(run)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", choices=("mlp", "transformer"), default="mlp")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, count = (Mlp(), 300) if options.model == "mlp" else (Transformer(), 20)
    run = steps_of(model, DataLoader(Rows(3200, 64), batch_size=16))
    aitop.hook.remove()
    microseconds(run, count)
    times: dict[str, list[float]] = {"plain": [], "hook": [], "removed": []}
    orders = itertools.cycle((("plain", "hook", "removed"), ("hook", "removed", "plain")))
    own = 0.0
    for order in itertools.islice(orders, options.rounds):
        for variant in order:
            if variant == "hook":
                assert aitop.hook.install("run") == "installed"
                microseconds(run, 30)  # finding the root module is over after a few steps
            times[variant].append(microseconds(run, count))
            if variant == "hook":
                own = aitop.hook._session._cost.us_per_step()
                assert aitop.hook.remove() == "removed"
                # The rounds after it begin as they would have without it.
                microseconds(run, 30)
    plain = statistics.median(times["plain"])
    print(f"{options.model}, {options.rounds} rounds of {count} steps, median step time")
    for variant, values in times.items():
        added = [value - base for value, base in zip(values, times["plain"], strict=True)]
        ratios = sorted(value / base for value, base in zip(values, times["plain"], strict=True))
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        print(
            f"  {variant:8s} {statistics.median(values):9.1f} us  ratio {statistics.median(ratios):.4f}"
            f" (10-90 %: {low:.4f}-{high:.4f})  added {statistics.median(added):+6.1f} us"
        )
    print(f"  the hook says of itself: {own} us per step ({100 * own / plain:.2f} %)")


if __name__ == "__main__":
    main()
