"""Fine-tune a small net on crops that come from a key-value store over the network."""

import pickle
import socket
import socketserver
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


class Store(socketserver.StreamRequestHandler):
    """One line with a key in, one pickled record out, after the time that the network takes."""

    def handle(self):
        for line in self.rfile:
            time.sleep(0.004)
            key = int(line)
            record = pickle.dumps({"pixels": bytes((key * 31 + i) % 251 for i in range(256)), "label": key % 10})
            self.wfile.write(len(record).to_bytes(4, "big") + record)


def serve(port_ready):
    """Run the store until the trainer is gone."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    port_ready.send(server.server_address[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        port_ready.recv()
    except EOFError:
        pass


class RemoteCrops(Dataset):
    def __init__(self, port, n=10_000):
        self.port = port
        self.n = n
        self.connection = None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port)).makefile("rwb")
        record = self.get(i)
        x = torch.frombuffer(bytearray(record["pixels"]), dtype=torch.uint8).float() / 255
        return x, record["label"]

    def get(self, key):
        self.connection.write(b"%d\n" % key)
        self.connection.flush()
        size = int.from_bytes(self.connection.read(4), "big")
        return pickle.loads(self.connection.read(size))


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(256, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return F.log_softmax(self.fc3(x), dim=1)


def train(model, loader, optimizer, log):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return True
    return False


def main():
    args = arguments(__doc__, workers=2, batch_size=16, width=1500)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs,), daemon=True).start()
    theirs.close()
    log = RunLog(args)
    loader = DataLoader(
        RemoteCrops(ours.recv()),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=8 if args.fixed else args.workers,
        persistent_workers=True,
    )
    model = Head(args.width)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    while not train(model, loader, optimizer, log):
        pass


if __name__ == "__main__":
    main()
