"""A convolutional autoencoder with the settings of the machine that it was written on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runlog import RunLog, arguments


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.LeakyReLU(0.1))


def main():
    args = arguments(__doc__, batch_size=16, threads=6, channels=24)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1 if args.fixed else args.threads)
    log = RunLog(args)
    pictures = TensorDataset(torch.rand(1024, 3, 32, 32))
    loader = DataLoader(pictures, batch_size=args.batch_size, shuffle=True, drop_last=True)
    c = args.channels
    net = nn.Sequential(
        block(3, c), nn.MaxPool2d(2), block(c, 2 * c), nn.MaxPool2d(2), block(2 * c, 2 * c),
        nn.Upsample(scale_factor=2), block(2 * c, c), nn.Upsample(scale_factor=2), nn.Conv2d(c, 3, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            loss = nn.functional.l1_loss(net(x), x)
            loss.backward()
            optimizer.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
