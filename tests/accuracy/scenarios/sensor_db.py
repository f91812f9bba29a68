"""Anomaly detection on readings of sensors, straight out of the SQLite file in which they were collected."""

import random
import sqlite3
import tempfile
from pathlib import Path

import torch
from torch import nn

from runlog import RunLog, arguments

POINTS = 32


def collect(path, sensors, indexed):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE readings (id INTEGER PRIMARY KEY, sensor INTEGER, taken INTEGER, value REAL)")
    rows = ((random.randrange(sensors), t, random.gauss(0, 1)) for t in range(sensors * POINTS * 2))
    db.executemany("INSERT INTO readings (sensor, taken, value) VALUES (?, ?, ?)", rows)
    if indexed:
        db.execute("CREATE INDEX by_sensor ON readings (sensor, taken)")
    db.commit()
    db.close()


class SensorWindows:
    """The last readings of sensors chosen at random."""

    def __init__(self, path, sensors):
        self.db = sqlite3.connect(path)
        self.sensors = sensors

    def window(self, sensor):
        query = "SELECT value FROM readings WHERE sensor = ? ORDER BY taken DESC LIMIT ?"
        values = [value for (value,) in self.db.execute(query, (sensor, POINTS))]
        return values + [0.0] * (POINTS - len(values))

    def batch(self, size):
        return torch.tensor([self.window(random.randrange(self.sensors)) for _ in range(size)])


class AutoEncoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(POINTS, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.decoder = nn.Linear(hidden, POINTS)

    def forward(self, x):
        return self.decoder(self.encoder(x))


if __name__ == "__main__":
    args = arguments(__doc__, batch_size=16, sensors=300, hidden=900)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "readings.sqlite"
        collect(file, args.sensors, args.fixed)
        windows = SensorWindows(file, args.sensors)
        net = AutoEncoder(args.hidden)
        optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        stop = False
        while not stop:
            x = windows.batch(args.batch_size)
            loss = ((net(x) - x) ** 2).mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            stop = log.step(loss)
