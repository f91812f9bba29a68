"""Serve a text classifier over HTTP to clients of its own. Now and then a request tidies up memory, and all wait."""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from torch import nn

CLIENTS = Path(__file__).parent / "clients" / "classify.py"
VOCABULARY = 4096
SESSIONS = 250_000
TIDY_EVERY = 120  # requests


class Classifier(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)).mean(dim=1))


class Server(ThreadingHTTPServer):
    """Answers requests on a port that the kernel chooses, each connection in a thread of its own."""

    daemon_threads = False

    def __init__(self, width: int, fixed: bool, steps: int):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = Classifier(width).eval()
        self.sessions = {user: {"texts": [user % 7], "labels": [user % 10]} for user in range(SESSIONS)}
        self.fixed = fixed
        self.steps = steps
        self.lock = threading.Lock()
        self.asked = self.answered = 0
        self.seconds = []
        self.since = time.perf_counter()
        if fixed:
            gc.collect()
            gc.freeze()

    def classify(self, user: int, tokens) -> int:
        with torch.inference_mode():
            label = int(self.model(torch.tensor([tokens])).argmax())
        labels = self.sessions[user % SESSIONS]["labels"]
        labels.append(label)
        del labels[:-8]
        return label

    def tidy_up(self) -> None:
        """Keep memory small, as people do who have seen it grow."""
        with self.lock:
            self.asked += 1
            due = self.asked % TIDY_EVERY == 0
        if due and not self.fixed:
            gc.collect()

    def count(self, seconds: float) -> None:
        """Count an answer that took so long; print now and then how long they took."""
        with self.lock:
            self.answered += 1
            self.seconds.append(seconds)
            if self.answered == 1 or len(self.seconds) == 100:
                ordered, now = sorted(self.seconds), time.perf_counter()
                p50, p99 = (1e3 * ordered[int(share * len(ordered))] for share in (0.5, 0.99))
                rate = len(ordered) / (now - self.since)
                print(f"request {self.answered}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, {rate:.1f} requests/s", flush=True)
                self.seconds, self.since = [], now
            if self.answered == self.steps:
                threading.Thread(target=self.shutdown).start()

    def handle_error(self, request, client_address) -> None:
        """Ignore it: a client that has gone is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        start = time.perf_counter()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"label": self.server.classify(asked["user"], asked["tokens"])}).encode()
        self.server.tidy_up()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.count(time.perf_counter() - start)

    def log_message(self, *args):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many requests (default: never)")
    parser.add_argument(
        "--fixed", action="store_true", help="leave memory to the interpreter, with the sessions frozen"
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    server = Server(256, args.fixed, args.steps)
    port = server.server_address[1]
    clients = subprocess.Popen([sys.executable, str(CLIENTS), str(port)])
    server.serve_forever()
    clients.terminate()
    clients.wait()
    server.server_close()


if __name__ == "__main__":
    main()
