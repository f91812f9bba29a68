"""A FastAPI server with a model: `server.py PORT [h11|httptools] [asyncio|uvloop]`."""

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


@app.get("/threads")
def threads():
    time.sleep(0.01)
    with torch.no_grad():
        answer = model(torch.ones(1, 8)).sum().item()
    time.sleep(0.005)
    return {"answer": answer}


@app.get("/loop")
async def loop():
    with torch.no_grad():
        return {"answer": model(torch.ones(1, 8)).sum().item()}


@app.get("/stream")
def stream():
    def parts():
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(1, 8))
            yield b"part"

    return StreamingResponse(parts())


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), http=sys.argv[2], loop=sys.argv[3], log_level="warning")
