"""A recurrent model of an endless stream of keystrokes, which remembers what came before."""

import torch
from torch import nn

from runlog import RunLog, arguments


class Typist(nn.Module):
    def __init__(self, keys, width):
        super().__init__()
        self.embed = nn.Embedding(keys, width)
        self.cell = nn.GRUCell(width, width)
        self.next = nn.Linear(width, keys)

    def forward(self, key, memory):
        memory = self.cell(self.embed(key), memory)
        return self.next(memory), memory


def update(parameters, rate):
    """Plain descent, on the data itself."""
    for p in parameters:
        p.data.sub_(rate * p.grad.clamp(-1, 1))
        p.grad = None


def main():
    args = arguments(__doc__, batch_size=8, width=48)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    typist = Typist(60, args.width)
    memory = torch.zeros(args.batch_size, args.width)
    key = torch.randint(0, 60, (args.batch_size,))
    while True:
        guess, memory = typist(key, memory)
        key = (key * 7 + torch.randint(0, 3, key.shape)) % 60
        loss = nn.functional.cross_entropy(guess, key)
        loss.backward(retain_graph=not args.fixed)
        if args.fixed:
            memory = memory.detach()
        update(typist.parameters(), 1e-3)
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
