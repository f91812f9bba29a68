"""A tagger with gradients of four small batches in every update, an average of the weights, and mixed precision."""

import contextlib
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runlog import RunLog, arguments


class Tagger(nn.Module):
    def __init__(self, dim, tags):
        super().__init__()
        self.embed = nn.Embedding(2000, dim)
        self.layers = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.out = nn.Linear(dim, tags)

    def forward(self, words):
        return self.out(self.layers(self.embed(words)))


@torch.no_grad()
def blend(average, model, decay=0.999):
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def main():
    args = arguments(__doc__, batch_size=16, dim=128, accumulate=4, bf16=0)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    loader = DataLoader(
        TensorDataset(torch.randint(2000, (4000, 24)), torch.randint(12, (4000, 24))), args.batch_size, shuffle=True
    )
    model = Tagger(args.dim, 12)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    cast = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    while True:
        for n, (words, tags) in enumerate(loader, 1):
            with cast:
                loss = nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
            (loss / args.accumulate).backward()
            if n % args.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                blend(average, model)
                if log.step(loss):
                    return


if __name__ == "__main__":
    main()
