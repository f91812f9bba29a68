"""Training on a laptop: something else wakes up now and then, and the disk takes its time once in a while."""

import os
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments

INDEXER = """
import os, time
parent = os.getppid()
while os.getppid() == parent:
    until = time.time() + 0.4
    while time.time() < until:
        sum(range(1000))
    time.sleep(5)
"""


class Clips(Dataset):
    def __init__(self, pause):
        self.clips = torch.randn(3000, 1, 400)
        self.pause = pause
        self.next_spin_up = time.monotonic() + pause

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        if time.monotonic() > self.next_spin_up:
            time.sleep(0.3)
            self.next_spin_up = time.monotonic() + self.pause
        return self.clips[i], i % 5


class Net(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.c1 = nn.Conv1d(1, channels, 9, stride=2)
        self.c2 = nn.Conv1d(channels, channels, 9, stride=2)
        self.fc = nn.Linear(channels, 5)

    def forward(self, x):
        x = torch.relu(self.c2(torch.relu(self.c1(x))))
        return self.fc(x.mean(2))


def main():
    args = arguments(__doc__, batch_size=48, channels=48, pause=20.0)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    subprocess.Popen([sys.executable, "-c", INDEXER], preexec_fn=lambda: os.nice(5))
    loader = DataLoader(Clips(args.pause), batch_size=args.batch_size, shuffle=True)
    net = Net(args.channels)
    optimizer = torch.optim.Adam(net.parameters())
    epoch = 0
    while True:
        epoch += 1
        for i, (clips, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(clips), labels)
            loss.backward()
            optimizer.step()
            if i % 50 == 0:
                print(f"epoch {epoch} [{i}/{len(loader)}] {loss.item():.3f}")
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
