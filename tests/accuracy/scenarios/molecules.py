"""Graph convolutions over small molecules; a batch is one large graph of many."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


class Molecules(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(8, 20, count)
        self.items = [(rng.random((n, 16), dtype=np.float32), rng.integers(0, n, (3 * n, 2))) for n in sizes]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def glue(items):
    """One block for each molecule, bond by bond."""
    total = sum(len(atoms) for atoms, _ in items)
    adjacency, first = torch.zeros(total, total), 0
    for atoms, bonds in items:
        for a, b in bonds:
            adjacency[first + a, first + b] += 1.0
        first += len(atoms)
    return torch.from_numpy(np.concatenate([atoms for atoms, _ in items])), adjacency


def glue_at_once(items):
    total = sum(len(atoms) for atoms, _ in items)
    starts = np.cumsum([0, *(len(atoms) for atoms, _ in items[:-1])])
    ends = torch.from_numpy(np.concatenate([bonds + at for (_, bonds), at in zip(items, starts)]))
    adjacency = torch.zeros(total, total)
    adjacency.index_put_((ends[:, 0], ends[:, 1]), torch.tensor(1.0), accumulate=True)
    return torch.from_numpy(np.concatenate([atoms for atoms, _ in items])), adjacency


class Convolutions(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, atoms, adjacency):
        atoms = torch.relu(self.a(adjacency @ atoms))
        return self.out(torch.relu(self.b(adjacency @ atoms)))


def main():
    args = arguments(__doc__, batch_size=24, width=160, workers=1)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    loader = DataLoader(
        Molecules(500, args.seed),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=glue_at_once if args.fixed else glue,
        persistent_workers=True,
    )
    model = Convolutions(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while True:
        for atoms, adjacency in loader:
            loss = model(atoms, adjacency).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
