"""Score a table overnight: batches of rows through a trained net, results into an array."""

import numpy as np
import torch
from torch import nn

from runlog import RunLog, arguments


def score(model, table, size, log):
    scores = np.empty(len(table), dtype=np.float32)
    for begin in range(0, len(table), size):
        rows = torch.from_numpy(table[begin : begin + size])
        with torch.no_grad():
            out = model(rows)
        scores[begin : begin + size] = out.squeeze(1).numpy()
        if log.step(out.mean()):
            return None
    return scores


if __name__ == "__main__":
    args = arguments(__doc__, batch_size=256, width=1024)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    table = np.random.default_rng(args.seed).standard_normal((50_000, 200), dtype=np.float32)
    model = nn.Sequential(
        nn.Linear(200, args.width), nn.ReLU(),
        nn.Linear(args.width, args.width), nn.ReLU(),
        nn.Linear(args.width, 1), nn.Sigmoid(),
    ).eval()  # fmt: skip
    while score(model, table, args.batch_size, log) is not None:
        pass
