"""A FastAPI server with a model: `fastapi_server.py PORT [h11|httptools] [asyncio|uvloop]`."""

import sys
import time

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from torch import nn

torch.set_num_threads(1)
app = FastAPI()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, rows):
        time.sleep(0.02)
        return self.layer(rows)


model = Net().eval()


@app.get("/health")
def health():
    return {}


# Each answer says when its handler began and when it was ready, on the clock that all processes share.
@app.get("/threads")
def threads():
    began = time.monotonic()
    time.sleep(0.01)
    with torch.no_grad():
        model(torch.ones(1, 8))
    time.sleep(0.005)
    return {"began": began, "ready": time.monotonic()}


@app.get("/loop")
async def loop():
    began = time.monotonic()
    with torch.no_grad():
        model(torch.ones(1, 8))
    return {"began": began, "ready": time.monotonic()}


@app.get("/stream")
def stream():
    def parts():
        for part in ('{"first": %f', ', "second": %f', ', "ready": %f}'):
            with torch.no_grad():
                model(torch.ones(1, 8))
            yield part % time.monotonic()

    return StreamingResponse(parts())


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), http=sys.argv[2], loop=sys.argv[3], log_level="warning")
