"""Tabular classification with a plain MLP; the data is in memory."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runlog import RunLog, arguments

args = arguments(__doc__, batch_size=128, width=1024)
torch.manual_seed(args.seed)
torch.set_num_threads(1)
log = RunLog(args)

X = torch.randn(20_000, 128)
Y = (X @ torch.randn(128, 10)).argmax(1)
loader = DataLoader(TensorDataset(X, Y), batch_size=args.batch_size, shuffle=True)

model = nn.Sequential(
    nn.Linear(128, args.width),
    nn.ReLU(),
    nn.Linear(args.width, args.width),
    nn.ReLU(),
    nn.Linear(args.width, args.width),
    nn.ReLU(),
    nn.Linear(args.width, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

finished = False
while not finished:
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        finished = log.step(loss)
        if finished:
            break
