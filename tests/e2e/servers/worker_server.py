"""A server in the style of LitServe: the main process takes requests and waits, a worker process runs the model.

python worker_server.py SECONDS
A third process asks it, over the loopback, one request after the other.
"""

import asyncio
import multiprocessing
import sys
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def load_model():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(384, 384) for _ in range(12)]).eval()


def worker(requests, answers):
    import torch

    model = load_model()
    print("step 1: it serves", flush=True)
    while True:
        key, number = requests.get()
        with torch.inference_mode():
            answers.put((key, float(predict(model, torch.full((48, 384), float(number))))))


def predict(model, value):
    return model(value).sum()


class Front:
    def __init__(self, requests, answers):
        self.requests = requests
        self.answers = answers
        self.waiting = {}

    def collect(self):
        while True:
            key, answer = self.answers.get()
            event, box = self.waiting.pop(key)
            box.append(answer)
            event.set()

    def ask(self, number):
        key = uuid.uuid4().hex
        event, box = threading.Event(), []
        self.waiting[key] = event, box
        self.requests.put((key, number))
        event.wait(30)
        return box[0]


class Handler(BaseHTTPRequestHandler):
    front = None

    def do_GET(self):
        body = str(self.front.ask(3)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def load(port, until):
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            answer.read()


async def serve(server):
    await asyncio.to_thread(server.serve_forever)


def main():
    until = time.monotonic() + float(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=worker, args=(requests, answers), daemon=True)
    process.start()
    Handler.front = Front(requests, answers)
    threading.Thread(target=Handler.front.collect, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    client = context.Process(target=load, args=(server.server_port, until), daemon=True)
    threading.Thread(target=lambda: [time.sleep(until - time.monotonic()), server.shutdown()], daemon=True).start()
    client.start()
    asyncio.run(serve(server))
    process.terminate()


if __name__ == "__main__":
    main()
