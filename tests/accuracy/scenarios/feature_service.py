"""Churn model on features that a web service hands out, one customer a request."""

import http.server
import json
import multiprocessing
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from runlog import RunLog, arguments

WIDTH = 48


class Features(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        customer = int(self.path.rsplit("/", 1)[1])
        time.sleep(0.004)
        rnd = random.Random(customer)
        body = json.dumps({"features": [rnd.random() for _ in range(WIDTH)], "churned": customer % 3 == 0}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


def run_service(port):
    server = Server(("127.0.0.1", 0), Features)
    port.value = server.server_address[1]
    server.serve_forever()


def get_customer(address, customer):
    with urllib.request.urlopen(f"{address}/customers/{customer}") as reply:
        answer = json.load(reply)
    return answer["features"], float(answer["churned"])


def one_by_one(address, size):
    while True:
        yield [get_customer(address, random.randrange(10_000)) for _ in range(size)]


def several_at_a_time(address, size):
    """Keep three batches under way in a few threads."""
    with ThreadPoolExecutor(8) as threads:
        under_way = []
        while True:
            while len(under_way) < 3:
                under_way.append([threads.submit(get_customer, address, random.randrange(10_000)) for _ in range(size)])
            yield [future.result() for future in under_way.pop(0)]


def main():
    args = arguments(__doc__, batch_size=8, width=1024)
    port = multiprocessing.Value("i", 0)
    multiprocessing.Process(target=run_service, args=(port,), daemon=True).start()
    while not port.value:
        time.sleep(0.01)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = nn.Sequential(
        nn.Linear(WIDTH, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    customers = several_at_a_time if args.fixed else one_by_one
    for batch in customers(f"http://127.0.0.1:{port.value}", args.batch_size):
        x = torch.tensor([features for features, _ in batch])
        y = torch.tensor([[label] for _, label in batch])
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
