"""A small vector for each shop, updated on its own, and a table in SQLite of how each update went."""

import os
import sqlite3
import tempfile

import torch
from torch import nn

from runlog import RunLog, arguments


class Shops(nn.Module):
    def __init__(self, shops, dim, width):
        super().__init__()
        self.vectors = nn.ParameterList(nn.Parameter(torch.randn(dim)) for _ in range(shops))
        self.head = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self):
        return self.head(torch.stack(list(self.vectors)))


class Ledger:
    def __init__(self, folder, every):
        self.db = sqlite3.connect(os.path.join(folder, "ledger.sqlite"))
        self.db.execute("CREATE TABLE updates (step INTEGER, name TEXT, value REAL)")
        self.every = every

    def enter(self, step, **values):
        if step % self.every == 0:
            for name, value in values.items():
                self.db.execute("INSERT INTO updates VALUES (?, ?, ?)", (step, name, value))
                self.db.commit()


def main():
    args = arguments(__doc__, shops=400, dim=48, width=768)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = Shops(args.shops, args.dim, args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=args.first)
    turnover = torch.randn(args.shops, 1)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, every=200 if args.second else 1)
        step = 0
        while True:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(), turnover)
            loss.backward()
            optimizer.step()
            step += 1
            ledger.enter(step, loss=loss.item(), largest=model.head[0].weight.abs().max().item())
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
