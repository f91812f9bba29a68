"""Routes support tickets to teams: spelling is corrected, the net decides, a web hook is told."""

import http.server
import json
import multiprocessing
import random
import time
import urllib.request

import torch
from torch import nn

from runlog import RunLog, arguments


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.004)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


def listen(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    port.value = server.server_address[1]
    server.serve_forever()


def distance(a, b):
    """Levenshtein."""
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (ca != cb))
    return row[-1]


class Speller:
    def __init__(self, words, remember):
        self.words = words
        self.known = {} if remember else None

    def correct(self, word):
        if self.known is None:
            return min(range(len(self.words)), key=lambda i: distance(word, self.words[i]))
        if word not in self.known:
            self.known[word] = min(range(len(self.words)), key=lambda i: distance(word, self.words[i]))
        return self.known[word]


class Router(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, 64)
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 9)
        )

    def forward(self, ids):
        return self.net(self.bag(ids)).log_softmax(1)


def tell(url, teams):
    body = json.dumps({"teams": teams}).encode()
    with urllib.request.urlopen(url, data=body) as reply:
        reply.read()


def main():
    args = arguments(__doc__, batch_size=4, words=40, width=1400)
    port = multiprocessing.Value("i", 0)
    multiprocessing.Process(target=listen, args=(port,), daemon=True).start()
    while not port.value:
        time.sleep(0.01)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    words = ["".join(random.choices("abcdefghi", k=6)) for _ in range(args.words)]
    typos = [word.replace(random.choice(word), random.choice("jklm")) for word in words]
    speller = Speller(words, remember=args.first)
    router = Router(args.words, args.width).eval()
    told = []
    while True:
        tickets = [random.choices(typos, k=8) for _ in range(args.batch_size)]
        ids = torch.tensor([[speller.correct(word) for word in ticket] for ticket in tickets])
        with torch.no_grad():
            scores = router(ids)
        told += scores.argmax(1).tolist()
        if not args.second or len(told) >= 200 * args.batch_size:
            tell(f"http://127.0.0.1:{port.value}/teams", told)
            told = []
        if log.step(scores.max()):
            return


if __name__ == "__main__":
    main()
