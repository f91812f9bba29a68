"""Early stopping taken seriously: the validation set is run through every few steps."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runlog import RunLog, arguments


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 64, generator=g)
    return TensorDataset(x, (x[:, :8].sum(1) > 0).long())


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 2))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:
        logits = model(x)
        correct += (logits.argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return correct / total


def main():
    args = arguments(__doc__, eval_every=5, batch_size=128)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    eval_every = 500 if args.fixed else args.eval_every
    train_loader = DataLoader(make_split(40_000, 1), batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(make_split(2_000, 2), batch_size=250)
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    best, step = 0.0, 0
    while True:
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % eval_every == 0:
                best = max(best, evaluate(model, valid_loader))
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
