"""Ranks products over HTTP: requests go through a queue to one thread, which runs the model on batches of them."""

import argparse
import gc
import json
import os
import queue
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

VOCABULARY, LENGTH = 4096, 64


class Ranker(nn.Module):
    """Wide and shallow: reading the weights takes longer than computing with them."""

    def __init__(self, width=1536, depth=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(VOCABULARY, width)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids))).squeeze(1)


class Job:
    def __init__(self, ids):
        self.ids = ids
        self.done = threading.Event()
        self.answer = None


class Model(threading.Thread):
    def __init__(self, batch, cause):
        super().__init__(daemon=True)
        self.jobs = queue.Queue()
        self.batch = batch
        self.window = 0.2 if cause == "window" else 0.0
        self.history = [[number] for number in range(1_000_000)] if cause == "collect" else []
        self.net = Ranker().eval()

    def waiting(self):
        jobs = [self.jobs.get()]
        until = time.monotonic() + self.window
        while len(jobs) < self.batch:
            try:
                jobs.append(self.jobs.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return jobs

    def run(self):
        tidied = time.monotonic()
        while True:
            jobs = self.waiting()
            with torch.inference_mode():
                answers = self.net(torch.stack([job.ids for job in jobs])).tolist()
            for job, answer in zip(jobs, answers, strict=True):
                job.answer = answer
                job.done.set()
            if self.history and time.monotonic() - tidied > 3.0:
                gc.collect()
                tidied = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
        ids = [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]
        job = Job(torch.tensor((ids + [0] * LENGTH)[:LENGTH]))
        self.server.model.jobs.put(job)
        job.done.wait()
        body = json.dumps({"rank": round(job.answer, 5)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that has gone is no error."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cause", default="none")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    server = Server(("127.0.0.1", args.port), Handler)
    server.model = Model(args.batch, args.cause)
    server.model.start()
    print(f"model in process {os.getpid()}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
