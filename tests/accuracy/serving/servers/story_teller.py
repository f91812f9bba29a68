"""Continues texts over HTTP with `generate` of transformers and a small random model, one request after the other."""

import argparse
import gc
import itertools
import json
import os
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, TOKENS = 512, 12


def small_model():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=8192,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


class Merges:
    """Pieces of text, put together pair by pair, the most frequent pair first."""

    def __init__(self):
        letters = "etaoinshrdlu"
        self.rank = {a + b: number for number, (a, b) in enumerate((a, b) for a in letters for b in letters)}

    def __call__(self, text):
        parts = list(text)
        while len(parts) > 1:
            ranks = [self.rank.get(a + b, 1000) for a, b in itertools.pairwise(parts)]
            best = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[best] == 1000:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return [zlib.crc32(part.encode()) % VOCABULARY for part in parts][:64]


def hashed(text):
    return [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


class Teller:
    def __init__(self, cause):
        self.model = small_model()
        self.tokenize = Merges() if cause == "tokenise" else hashed
        self.one_at_a_time = threading.Lock()
        self.stories = [[number] for number in range(1_000_000)] if cause == "collect" else []
        self.tidied = time.monotonic()

    def tell(self, text):
        ids = torch.tensor([self.tokenize(text)])
        with self.one_at_a_time, torch.inference_mode():
            if self.stories and time.monotonic() - self.tidied > 3.0:
                self.tidied = time.monotonic()
                gc.collect()
            answer = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False
            )
        return answer[0, ids.shape[1] :].tolist()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"tokens": self.server.teller.tell(asked["text"])}).encode()
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
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    server = Server(("127.0.0.1", args.port), Handler)
    server.teller = Teller(args.cause)
    print(f"model in process {os.getpid()}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
