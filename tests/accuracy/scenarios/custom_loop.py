"""Click-through model on a text log: a reader, a batcher and a loop, all by hand."""

import itertools
import json
import random

import numpy as np
import torch
import torch.nn as nn

from runlog import RunLog, arguments

FIELDS = 64


def make_log(path_lines, seed):
    """The log as lines of text, as they would come from a file."""
    rnd = random.Random(seed)
    for _ in range(path_lines):
        features = {f"f{i}": round(rnd.gauss(0, 1), 4) for i in range(FIELDS)}
        yield json.dumps({"id": rnd.randrange(10**9), "click": rnd.random() < 0.3, "features": features})


def parse(line):
    """One record: features in order, missing ones as 0, clipped."""
    record = json.loads(line)
    values = []
    for i in range(FIELDS):
        value = float(record["features"].get(f"f{i}", 0.0))
        values.append(max(-3.0, min(3.0, value)))
    return values, float(record["click"])


def read_batches(lines, size):
    """Parse and batch, over and over."""
    batch = []
    for line in itertools.cycle(lines):
        batch.append(parse(line))
        if len(batch) == size:
            yield (
                torch.tensor([values for values, _ in batch]),
                torch.tensor([click for _, click in batch]),
            )
            batch = []


def cached_batches(lines, size):
    """Parse once into arrays, then slice."""
    parsed = [parse(line) for line in lines]
    values = np.array([row for row, _ in parsed], dtype=np.float32)
    clicks = np.array([click for _, click in parsed], dtype=np.float32)
    start = 0
    while True:
        rows = (np.arange(size) + start) % len(values)
        yield torch.from_numpy(values[rows]), torch.from_numpy(clicks[rows])
        start += size


class CTR(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bn = nn.BatchNorm1d(FIELDS)
        self.l1 = nn.Linear(FIELDS, width)
        self.l2 = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.l1(self.bn(x)))
        x = torch.relu(self.l2(x))
        return self.out(x).squeeze(1)


if __name__ == "__main__":
    args = arguments(__doc__, batch_size=256, width=512)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    lines = list(make_log(4096, args.seed))
    net = CTR(args.width)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    batches = cached_batches(lines, args.batch_size) if args.fixed else read_batches(lines, args.batch_size)
    for x, y in batches:
        opt.zero_grad()
        loss = bce(net(x), y)
        loss.backward()
        opt.step()
        if log.step(loss):
            break
