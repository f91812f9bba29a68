"""Trains like pytorch/examples' mnist_hogwild: trainers share a model, the process that starts them joins them.

python hogwild.py START_METHOD COUNT SECONDS
"""

import sys
import time

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 10, 5)
        self.second = nn.Conv2d(10, 20, 5)
        self.last = nn.Linear(320, 10)

    def forward(self, images):
        images = torch.relu(torch.max_pool2d(self.first(images), 2))
        images = torch.relu(torch.max_pool2d(self.second(images), 2))
        return self.last(images.flatten(1))


def epoch(model, loader, optimizer, until):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if time.monotonic() > until:
            return


def train(number, model, until):
    torch.manual_seed(number)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(2048, 1, 28, 28), torch.randint(0, 10, (2048,)))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    print("step 1: it trains", flush=True)
    while time.monotonic() < until:
        epoch(model, loader, optimizer, until)


def main():
    method, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    mp.set_start_method(method)
    until = time.monotonic() + seconds
    model = Net()
    model.share_memory()
    trainers = []
    for number in range(count):
        trainer = mp.Process(target=train, args=(number, model, until))
        trainer.start()
        trainers.append(trainer)
    for trainer in trainers:
        trainer.join()


if __name__ == "__main__":
    main()
