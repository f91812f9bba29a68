"""A deployment of Ray Serve whose replica makes its input in Python. Prints "up", and ends with its standard input."""

import sys

import ray
import torch
from ray import serve
from starlette.requests import Request
from torch import nn

torch.set_num_threads(1)


@serve.deployment(max_ongoing_requests=8)
class Ranker:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()

    def features(self):
        rows = []
        for number in range(60_000):
            rows.append(number * number % 97)
        return torch.tensor(rows[:512], dtype=torch.float32)

    async def __call__(self, request: Request):
        features = self.features()
        with torch.no_grad():
            scores = self.model(features)
        return {"best": int(scores.argmax())}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Ranker.bind(), name="ranker", route_prefix="/")
    print("up", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()
