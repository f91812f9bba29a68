"""Sentence pairs of every length, through a compiled model."""

import torch
import torch._dynamo
from torch import nn

from runlog import RunLog, arguments


class Matcher(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(1000, dim, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.out = nn.Linear(2 * dim, 1)

    def encode(self, ids):
        states = self.mix(self.embed(ids))
        return states.mean(1)

    def forward(self, left, right):
        return self.out(torch.cat([self.encode(left), self.encode(right)], 1)).squeeze(1)


def pad_to(ids, length):
    return nn.functional.pad(ids, (0, length - ids.shape[1]))


def main():
    args = arguments(__doc__, batch_size=48, dim=96, longest=200, backend="aot_eager")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    torch._dynamo.config.cache_size_limit = 100_000
    torch._dynamo.config.accumulated_cache_size_limit = 100_000
    model = Matcher(args.dim)
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        lengths = torch.randint(5, args.longest, (2,)).tolist()
        left, right = (torch.randint(1, 1000, (args.batch_size, n)) for n in lengths)
        if args.fixed:
            left, right = pad_to(left, args.longest), pad_to(right, args.longest)
        same = (left[:, 0] % 2 == right[:, 0] % 2).float()
        loss = nn.functional.binary_cross_entropy_with_logits(compiled(left, right), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
