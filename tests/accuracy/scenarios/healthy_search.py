"""Embedding of pictures for a search: what waits in a queue is gathered into full batches and answered."""

import queue
import threading

import torch
from torch import nn

from runlog import RunLog, arguments


def gather(inbox, most):
    """A full batch of requests."""
    jobs = []
    while len(jobs) < most:
        jobs.append(inbox.get())
    return jobs


def ask(inbox, width):
    """Somebody who always wants something more."""
    pictures = torch.randn(32, width)
    asked = 0
    while True:
        inbox.put((pictures[asked % 32], queue.SimpleQueue()))
        asked += 1


def main():
    args = arguments(__doc__, batch_size=64, width=1024)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    w = args.width
    model = nn.Sequential(*(nn.Sequential(nn.Linear(w, w), nn.ReLU()) for _ in range(6)), nn.Linear(w, 128)).eval()
    inbox = queue.Queue(2 * args.batch_size)
    threading.Thread(target=ask, args=(inbox, w), daemon=True, name="ask").start()
    with torch.inference_mode():
        while True:
            jobs = gather(inbox, args.batch_size)
            found = model(torch.stack([picture for picture, _ in jobs]))
            for answer, (_, box) in zip(found, jobs):
                box.put(answer)
            if log.step(found.mean()):
                break


if __name__ == "__main__":
    main()
