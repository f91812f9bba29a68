"""Next-basket prediction from columns of purchases in memory (numpy, as it came out of a data frame)."""

import numpy as np
import torch
from torch import nn

from runlog import RunLog, arguments


class Purchases:
    def __init__(self, rows, customers, products, seed=0):
        rng = np.random.default_rng(seed)
        self.customer = rng.integers(0, customers, rows)
        self.product = rng.integers(0, products, rows)
        self.price = rng.gamma(2.0, 10.0, rows).astype(np.float32)
        self.customers, self.products = customers, products
        order = np.argsort(self.customer, kind="stable")
        self.by_customer = order
        self.bounds = np.searchsorted(self.customer[order], np.arange(customers + 1))

    def rows_of(self, who, indexed):
        if indexed:
            return self.by_customer[self.bounds[who] : self.bounds[who + 1]]
        return np.where(self.customer == who)[0]

    def basket(self, who, indexed):
        rows = self.rows_of(who, indexed)
        spent = np.bincount(self.product[rows], self.price[rows], minlength=self.products)
        return spent.astype(np.float32)


def draw(purchases, size, rng, indexed):
    chosen = rng.integers(0, purchases.customers, size)
    return torch.from_numpy(np.stack([purchases.basket(c, indexed) for c in chosen]))


def main():
    args = arguments(__doc__, batch_size=64, rows=300_000, width=512)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    purchases = Purchases(args.rows, 5000, 400)
    rng = np.random.default_rng(args.seed)
    encoder = nn.Sequential(nn.Linear(400, args.width), nn.ReLU(), nn.Linear(args.width, 64))
    decoder = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 400))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    step = 0
    while True:
        spent = draw(purchases, args.batch_size, rng, args.fixed)
        wanted = torch.log1p(spent)
        output = decoder(encoder(wanted))
        loss = nn.functional.mse_loss(output, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
