"""A LitServe server: `litserve_server.py PORT MAX_BATCH`."""

import sys
import time

import litserve
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, rows):
        time.sleep(0.02)
        return self.layer(rows)


class Api(litserve.LitAPI):
    def setup(self, device):
        torch.set_num_threads(1)
        self.model = Net().eval()

    def decode_request(self, request, context):
        context["began"] = time.monotonic()
        time.sleep(0.003)
        return torch.ones(8)

    def batch(self, inputs):
        return torch.stack(inputs)

    def predict(self, rows):
        # Work of the user's own before the model is asked.
        time.sleep(0.005)
        with torch.no_grad():
            return self.model(rows.reshape(-1, 8))

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output, context):
        time.sleep(0.002)
        return {"began": context["began"], "ready": time.monotonic()}


if __name__ == "__main__":
    port, batch = int(sys.argv[1]), int(sys.argv[2])
    api = Api(max_batch_size=batch, batch_timeout=0.01) if batch > 1 else Api()
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(port=port, generate_client_file=False)
