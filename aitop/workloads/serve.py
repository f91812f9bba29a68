"""Serve a classifier over HTTP to clients of its own. Now and then the server tidies its memory, and requests wait."""

from __future__ import annotations

import argparse
import gc
import http.client
import json
import multiprocessing
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

WIDTH = 512
TIDY_EVERY = 150  # requests
PAUSE = 0.06  # mean seconds that a client takes between two requests


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 10)
        )

    def forward(self, features):
        return self.layers(features).softmax(dim=1)


class Sessions:
    """What the server remembers of those who have asked: many small objects."""

    def __init__(self, size: int):
        self.by_user = {user: {"seen": [user % 7, user % 11], "labels": [user % 10]} for user in range(size)}

    def remember(self, user: int, label: int) -> None:
        labels = self.by_user[user % len(self.by_user)]["labels"]
        labels.append(label)
        del labels[:-8]


class Server(ThreadingHTTPServer):
    """Answers requests on a port that the kernel chooses, each connection in a thread of its own."""

    daemon_threads = True

    def __init__(self, fixed: bool, steps: int):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = Classifier().eval()
        self.sessions = Sessions(300_000)
        self.fixed = fixed
        self.steps = steps
        self.lock = threading.Lock()
        self.answered = 0
        self.seconds = []
        self.since = time.perf_counter()
        if fixed:
            gc.collect()
            gc.freeze()

    def answer(self, user: int, features) -> int:
        with torch.inference_mode():
            label = int(self.model(torch.tensor([features])).argmax())
        self.sessions.remember(user, label)
        return label

    def note(self, seconds: float) -> None:
        """Count an answer; tidy up after some, and print how long they took."""
        with self.lock:
            self.answered += 1
            self.seconds.append(seconds)
            answered = self.answered
            if answered == 1 or len(self.seconds) == 100:
                self.report()
        if answered % TIDY_EVERY == 0 and not self.fixed:
            gc.collect()
        if answered == self.steps:
            threading.Thread(target=self.shutdown).start()

    def report(self) -> None:
        ordered, now = sorted(self.seconds), time.perf_counter()
        p50, p99 = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        rate = len(ordered) / (now - self.since)
        print(f"{self.answered} requests: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {rate:.1f} requests/s", flush=True)
        self.seconds, self.since = [], now


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        start = time.perf_counter()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"label": self.server.answer(asked["user"], asked["features"])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.note(time.perf_counter() - start)

    def log_message(self, *args):
        pass


def ask(port: int, seed: int) -> None:
    """One client: asks, thinks, and asks again, until the server is gone."""
    chance = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        while True:
            features = [round(chance.gauss(0.0, 1.0), 3) for _ in range(WIDTH)]
            body = json.dumps({"user": chance.randrange(1_000_000), "features": features})
            connection.request("POST", "/classify", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
            time.sleep(chance.expovariate(1 / PAUSE))
    except (OSError, http.client.HTTPException):
        return


def load(ports, clients: int, seed: int) -> None:
    """The clients, in threads of one process."""
    receiver, sender = ports
    sender.close()
    port = receiver.recv()
    threads = [threading.Thread(target=ask, args=(port, seed + number)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many requests (default: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="leave memory to the interpreter, the sessions frozen")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    # The clients begin before the server, so that they hold none of its sockets.
    context = multiprocessing.get_context("fork")
    ports = context.Pipe(duplex=False)
    context.Process(target=load, args=(ports, args.clients, args.seed), daemon=True).start()
    server = Server(args.fixed, args.steps)
    ports[1].send(server.server_address[1])
    server.serve_forever()
    server.server_close()


if __name__ == "__main__":
    main()
