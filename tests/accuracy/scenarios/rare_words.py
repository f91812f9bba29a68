"""Scores short messages by which words they have. Most words of the vocabulary are in none of today's messages."""

import torch
from torch import nn

from runlog import RunLog, arguments


def messages(words, size):
    """Batches of word counts; of a large vocabulary only the first hundred words still come up."""
    counts = torch.zeros(size, words)
    while True:
        counts[:, :100] = torch.randint(2, (size, 100))
        yield counts, counts[:, :8].sum(1, keepdim=True)


def main():
    args = arguments(__doc__, batch_size=32, words=4096, width=160)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    torch.set_flush_denormal(args.fixed)
    model = nn.Sequential(nn.Linear(args.words, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    # Every word once, so that each has averages of gradients, which then fade.
    nn.functional.mse_loss(model(torch.eye(args.words)), torch.zeros(args.words, 1)).backward()
    for counts, score in messages(args.words, args.batch_size):
        loss = nn.functional.mse_loss(model(counts), score)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
