"""Forecast the next hour of a weather grid. Hours are kept packed in memory; a thread unpacks ahead of the model."""

import queue
import threading
import zlib

import numpy as np
import torch
from torch import nn

from runlog import RunLog, arguments


class Archive:
    def __init__(self, hours, side, packed):
        rng = np.random.default_rng(3)
        grids = (rng.standard_normal((side, side)).cumsum(0).astype(np.float32) for _ in range(hours))
        self.side = side
        self.hours = [zlib.compress(g.tobytes(), 1) if packed else g for g in grids]
        self.packed = packed

    def __len__(self):
        return len(self.hours)

    def hour(self, i):
        if not self.packed:
            return self.hours[i]
        raw = zlib.decompress(self.hours[i])
        return np.frombuffer(raw, dtype=np.float32).reshape(self.side, self.side)


class Prefetcher:
    """Pairs of consecutive hours, made ready by a thread."""

    def __init__(self, archive, batch_size, depth=4):
        self.archive, self.batch_size = archive, batch_size
        self.ready = queue.Queue(maxsize=depth)
        threading.Thread(target=self.produce, daemon=True).start()

    def produce(self):
        rng = np.random.default_rng(0)
        while True:
            starts = rng.integers(0, len(self.archive) - 1, self.batch_size)
            now = np.stack([self.archive.hour(s) for s in starts])
            later = np.stack([self.archive.hour(s + 1) for s in starts])
            self.ready.put((torch.from_numpy(now)[:, None], torch.from_numpy(later)[:, None]))

    def __iter__(self):
        return self

    def __next__(self):
        return self.ready.get()


def main():
    args = arguments(__doc__, batch_size=8, side=160, hours=64)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    archive = Archive(args.hours, args.side, packed=not args.fixed)
    net = nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 1, 3, padding=1),
        nn.Upsample(scale_factor=4),
    )  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for now, later in Prefetcher(archive, args.batch_size):
        prediction = net(now)
        loss = (prediction - later).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
