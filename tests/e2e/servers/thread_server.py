"""A model that runs in another thread than the main one, in one of three ways.

python thread_server.py (pool|http|asyncio) SECONDS
"""

import asyncio
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(384, 384) for _ in range(12)]).eval()


def predict(number):
    with torch.inference_mode():
        return float(model(torch.full((48, 384), float(number))).sum())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = str(predict(3)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def pool(until):
    with ThreadPoolExecutor(2) as executor:
        while time.monotonic() < until:
            list(executor.map(predict, range(64)))


def http(until):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def load():
        while time.monotonic() < until:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=30) as answer:
                answer.read()
        server.shutdown()

    threading.Thread(target=load, daemon=True).start()
    server.serve_forever()


def of_asyncio(until):
    async def serve():
        while time.monotonic() < until:
            await asyncio.gather(*(asyncio.to_thread(predict, number) for number in range(4)))

    asyncio.run(serve())


if __name__ == "__main__":
    print("step 1: it serves", flush=True)
    {"pool": pool, "http": http, "asyncio": of_asyncio}[sys.argv[1]](time.monotonic() + float(sys.argv[2]))
