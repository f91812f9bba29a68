"""A loop that trains until it is stopped, with a function in each step that works for MILLISECONDS of CPU time."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def rank(words, seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        words = sorted(words, key=hash)
    return words


words = [str(number) for number in range(200)]
number = 0
while True:
    number += 1
    words = rank(words, float(sys.argv[1]) / 1e3)
    loss = model(torch.randn(128, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number == 1 or number % 100 == 0:
        print(f"step {number}: {time.thread_time() / number * 1e3:.3f} ms of CPU time each", flush=True)
