"""A detector of plants whose loss pairs boxes one by one: many operations on a few numbers, without gradient.

--fixed pairs all boxes of a picture at once.
"""

import torch
from torch import nn

from runlog import RunLog, arguments


def pair_by_pair(found, truth):
    chosen = []
    for i in range(found.shape[0]):
        best, which = -1.0, 0
        for j in range(truth.shape[0]):
            width = (torch.min(found[i, 2], truth[j, 2]) - torch.max(found[i, 0], truth[j, 0])).clamp(min=0)
            height = (torch.min(found[i, 3], truth[j, 3]) - torch.max(found[i, 1], truth[j, 1])).clamp(min=0)
            overlap = (width * height).item()
            if overlap > best:
                best, which = overlap, j
        chosen.append(which)
    return torch.tensor(chosen)


def all_at_once(found, truth):
    corner = torch.max(found[:, None, :2], truth[None, :, :2])
    other = torch.min(found[:, None, 2:], truth[None, :, 2:])
    return (other - corner).clamp(min=0).prod(-1).argmax(1)


class Detector(nn.Module):
    def __init__(self, boxes, pair):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 5, 4),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(boxes * 4),
        )
        self.boxes, self.pair = boxes, pair

    def forward(self, pictures, truth):
        found = self.body(pictures).view(-1, self.boxes, 4)
        loss = 0.0
        for one, its in zip(found, truth):
            with torch.no_grad():
                which = self.pair(one, its)
            loss = loss + nn.functional.smooth_l1_loss(one, its[which])
        return loss / len(found)


def main():
    args = arguments(__doc__, batch_size=4, boxes=10, plants=5)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    net = Detector(args.boxes, all_at_once if args.fixed else pair_by_pair)
    net(torch.zeros(1, 3, 80, 80), torch.zeros(1, args.plants, 4))
    optimizer = torch.optim.Adam(net.parameters())
    while True:
        loss = net(torch.randn(args.batch_size, 3, 80, 80), torch.rand(args.batch_size, args.plants, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.step(loss.detach()):
            break


if __name__ == "__main__":
    main()
