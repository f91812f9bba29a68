"""Denoising on spectrogram tiles, one .npy file each, on a mounted bucket. No DataLoader: a plain loop."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from runlog import RunLog, arguments

MOUNT_LATENCY = 0.003  # what opening a file on the mount takes


class BucketFile:
    """A file on the mounted bucket: opening it costs a round trip."""

    def __init__(self, path):
        time.sleep(MOUNT_LATENCY)
        self.raw = open(path, "rb")

    def __enter__(self):
        return self.raw

    def __exit__(self, *exc):
        self.raw.close()


def load_tile(path):
    with BucketFile(path) as f:
        return np.load(f)


def load_batch(paths):
    return torch.from_numpy(np.stack([load_tile(p) for p in paths]))


def sequential(paths, size, rng):
    while True:
        yield load_batch(rng.choice(paths, size))


def prefetched(paths, size, rng, ahead=4):
    """The same batches, read by threads while the model computes."""
    with ThreadPoolExecutor(32) as pool:
        pending = []
        while True:
            while len(pending) < ahead:
                pending.append([pool.submit(load_tile, p) for p in rng.choice(paths, size)])
            yield torch.from_numpy(np.stack([tile.result() for tile in pending.pop(0)]))


def make_tiles(folder, count):
    rng = np.random.default_rng(0)
    paths = [os.path.join(folder, f"tile_{i:04d}.npy") for i in range(count)]
    for p in paths:
        np.save(p, rng.standard_normal((32, 32), dtype=np.float32))
    return paths


def main():
    args = arguments(__doc__, batch_size=12)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 1, 3, padding=1),
    )  # fmt: skip
    optim = torch.optim.Adam(net.parameters())
    with tempfile.TemporaryDirectory() as folder:
        paths = np.array(make_tiles(folder, 256))
        rng = np.random.default_rng(args.seed)
        reader = prefetched if args.fixed else sequential
        for clean in reader(paths, args.batch_size, rng):
            clean = clean[:, None]
            noisy = clean + 0.3 * torch.randn_like(clean)
            loss = (net(noisy) - clean).pow(2).mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
