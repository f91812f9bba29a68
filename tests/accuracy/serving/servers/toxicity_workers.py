"""Finds toxic comments with LitServe: attention over long texts, for which a batch is no cheaper than its parts."""

import argparse
import os
import zlib

import litserve
import torch
from torch import nn

VOCABULARY, LENGTH = 8192, 256


class Toxicity(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)).mean(1)).sigmoid()


class Api(litserve.LitAPI):
    def setup(self, device):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = Toxicity().eval()
        print(f"model in process {os.getpid()}", flush=True)

    def decode_request(self, request):
        ids = [zlib.crc32(word.encode()) % VOCABULARY for word in request["text"].split()]
        return torch.tensor([(ids + [0] * LENGTH)[:LENGTH]])

    def predict(self, ids):
        with torch.inference_mode():
            return self.model(ids)

    def encode_response(self, output):
        return {"toxic": round(float(output), 5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=args.workers)
    server.run(port=args.port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
