"""Starts the script that trains as another Python, and waits for it. python wrapped.py SECONDS"""

import subprocess
import sys
import time
from pathlib import Path

import torch


def train(seconds):
    until = time.monotonic() + seconds
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print("step 1: it trains", flush=True)
    while time.monotonic() < until:
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    if "--child" in sys.argv:
        train(float(sys.argv[1]))
    else:
        subprocess.run([sys.executable, str(Path(__file__)), sys.argv[1], "--child"], check=True)
