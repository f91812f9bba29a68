"""A home-made experiment tracker: every metric of every step is in the database (or on the server) before the next."""

import http.server
import json
import multiprocessing
import os
import sqlite3
import tempfile
import time
import urllib.request

import torch
from torch import nn

from runlog import RunLog, arguments


class SqliteTracker:
    def __init__(self, folder):
        self.db = sqlite3.connect(os.path.join(folder, "metrics.db"))
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL)")

    def log(self, step, metrics):
        for name, value in metrics.items():
            self.db.execute("INSERT INTO metrics VALUES (?, ?, ?)", (step, name, value))
            self.db.commit()


class Receiver(http.server.BaseHTTPRequestHandler):
    """The tracking server: takes its time, says 200."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.015)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


def serve(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    port.value = server.server_address[1]
    server.serve_forever()


class HttpTracker:
    def __init__(self, folder):
        port = multiprocessing.Value("i", 0)
        multiprocessing.Process(target=serve, args=(port,), daemon=True).start()
        while not port.value:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{port.value}/metrics"

    def log(self, step, metrics):
        body = json.dumps({"step": step, **metrics}).encode()
        urllib.request.urlopen(self.url, data=body).read()


TRACKERS = {"sqlite": SqliteTracker, "http": HttpTracker}


def main():
    args = arguments(__doc__, sink="sqlite", batch_size=256)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = nn.Sequential(nn.Linear(100, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    every = 200 if args.fixed else 1
    with tempfile.TemporaryDirectory() as folder:
        tracker = TRACKERS[args.sink](folder)
        step = 0
        while True:
            x = torch.randn(args.batch_size, 100)
            y = x[:, :1].sin()
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % every == 0:
                metrics = {"loss": loss.item(), "grad_norm": norm.item(), "lr": optimizer.param_groups[0]["lr"]}
                tracker.log(step, metrics)
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
