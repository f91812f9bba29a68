"""Records come one after the other from a store that takes 4 ms for each. Fixed: eight workers ask it."""

import time

import torch
from runlog import RunLog, arguments
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpu_run import layers, mixed_precision

ROUND_TRIP = 0.004


class Records(Dataset):
    def __init__(self, width):
        self.rows = torch.randn(1024, width)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(ROUND_TRIP)
        return self.rows[index % len(self.rows)], index % 10


def main():
    args = arguments(__doc__, device="cuda", width=2048, batch_size=32)
    torch.manual_seed(args.seed)
    log = RunLog(args)
    loader = DataLoader(Records(args.width), args.batch_size, num_workers=8 if args.fixed else 0)
    model = layers(args.width, 4).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows, labels in loader:
        rows, labels = rows.to(args.device), labels.to(args.device)
        optimizer.zero_grad()
        with mixed_precision(args.device):
            loss = nn.functional.cross_entropy(model(rows).float(), labels)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
