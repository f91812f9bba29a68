"""An embedding service: requests wait in a queue, a loop takes them from it and answers."""

import queue
import threading
import time
from concurrent.futures import Future

import torch
from torch import nn

from runlog import RunLog, arguments


class Service:
    def __init__(self, model, most):
        self.model = model
        self.most = most
        self.requests = queue.Queue(maxsize=512)

    def submit(self, features):
        answer = Future()
        self.requests.put((features, answer))
        return answer

    def take(self):
        """What waits in the queue, up to the most that are answered together."""
        taken = [self.requests.get()]
        while len(taken) < self.most:
            try:
                taken.append(self.requests.get_nowait())
            except queue.Empty:
                break
        return taken

    @torch.no_grad()
    def answer(self, taken):
        vectors = self.model(torch.stack([features for features, _ in taken]))
        for vector, (_, future) in zip(vectors, taken):
            future.set_result(vector)
        return vectors

    def run(self, log):
        while True:
            taken = self.take()
            vectors = self.answer(taken)
            for _ in taken:
                if log.step(vectors.mean()):
                    return


def clients(service, width):
    """Many people who want something at the same time."""
    features = torch.randn(64, width)
    sent = 0
    while True:
        service.submit(features[sent % 64])
        sent += 1
        if sent % 32 == 0:
            time.sleep(0.0005)


def main():
    args = arguments(__doc__, batch_size=1, width=1536)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    w = args.width
    model = nn.Sequential(nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, w), nn.GELU(), nn.Linear(w, 256)).eval()
    service = Service(model, most=32 if args.fixed else args.batch_size)
    threading.Thread(target=clients, args=(service, w), daemon=True, name="clients").start()
    service.run(log)


if __name__ == "__main__":
    main()
