"""Embeds sentences with LitServe, one by one or in batches."""

import argparse
import gc
import os
import time
import zlib

import litserve
import torch
from torch import nn

VOCABULARY, LENGTH = 4096, 64


class Encoder(nn.Module):
    """Wide and shallow: reading the weights takes longer than computing with them."""

    def __init__(self, width=1536, depth=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(VOCABULARY, width)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))

    def forward(self, ids):
        return self.layers(self.embed(ids))[:, :16]


class Api(litserve.LitAPI):
    def __init__(self, cause, **more):
        super().__init__(**more)
        self.cause = cause

    def setup(self, device):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = Encoder().eval()
        self.documents = [[number] for number in range(1_000_000)] if self.cause == "collect" else []
        self.tidied = time.monotonic()
        print(f"model in process {os.getpid()}", flush=True)

    def decode_request(self, request):
        words = request["text"].split()
        if self.cause == "tokenise":
            words = self.stemmed(words)
        ids = [zlib.crc32(word.encode()) % VOCABULARY for word in words]
        return torch.tensor((ids + [0] * LENGTH)[:LENGTH])

    def stemmed(self, words):
        stems = []
        for word in words * 120:
            shape = "".join("v" if letter in "aeiou" else "c" for letter in word)
            stems.append(word[: max(3, shape.rfind("cv"))])
        return stems

    def batch(self, inputs):
        return torch.stack(inputs)

    def predict(self, ids):
        if self.documents and time.monotonic() - self.tidied > 3.0:
            self.tidied = time.monotonic()
            gc.collect()
        with torch.inference_mode():
            return self.model(ids.reshape(-1, LENGTH))

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"embedding": [round(value, 4) for value in output.flatten().tolist()]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cause", default="none")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    api = Api(args.cause, max_batch_size=args.batch, batch_timeout=0.002) if args.batch > 1 else Api(args.cause)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=args.workers)
    server.run(port=args.port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
