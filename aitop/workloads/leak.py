"""Train a model and keep the validation loss of every step, each with the graph that it came from."""

from __future__ import annotations

import resource

import torch
from torch import nn

from aitop.workloads._run import Progress, options, prepare


class Net(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 10)

    def forward(self, inputs):
        return self.head(self.hidden(inputs))


def make_problem(size: int):
    """Inputs and labels of a synthetic classification problem."""
    inputs = torch.randn(size, 64)
    return inputs, inputs[:, :10].argmax(dim=1)


def resident_mb() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = options(__doc__, "keep numbers, not tensors", batch_size=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--limit-mb", type=float, default=4096, help="stop when the process has grown to this")
    args = parser.parse_args()

    prepare(args)
    model = Net(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    all_inputs, all_labels = make_problem(100 * args.batch_size)
    valid_inputs, valid_labels = make_problem(16)
    history = []

    progress = Progress(args.steps)
    while True:
        rows = slice(progress.count % 100 * args.batch_size, (progress.count % 100 + 1) * args.batch_size)
        optimizer.zero_grad()
        criterion(model(all_inputs[rows]), all_labels[rows]).backward()
        optimizer.step()

        loss = criterion(model(valid_inputs), valid_labels)
        history.append(loss.item() if args.fixed else loss)

        if progress.step(loss):
            return
        if resident_mb() > args.limit_mb:
            print(f"stopping: the process has grown to {args.limit_mb:.0f} MB", flush=True)
            return


if __name__ == "__main__":
    main()
