"""Recognise people by how they walk: leaky integrators over the readings of an accelerometer."""

import torch
from torch import nn

from runlog import RunLog, arguments


class Integrators(nn.Module):
    """h[t] = a * h[t-1] + (1 - a) * u[t], with an a of its own for each channel."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-2.0, 3.0, channels))
        self.kernel = kernel

    def forward(self, u):
        a = torch.sigmoid(self.rate)
        if self.kernel:
            t = torch.arange(u.shape[1])
            ago = (t[:, None] - t[None, :]).clamp(min=0)
            weights = torch.tril((1 - a)[:, None, None] * torch.exp(a.log()[:, None, None] * ago))
            return (weights @ u.permute(2, 1, 0)).permute(2, 1, 0)
        h = torch.zeros_like(u[:, 0])
        states = []
        for t in range(u.shape[1]):
            h = a * h + (1 - a) * u[:, t]
            states.append(h)
        return torch.stack(states, dim=1)


class Gait(nn.Module):
    def __init__(self, sensors, hidden, people, kernel):
        super().__init__()
        self.inp = nn.Linear(sensors, hidden)
        self.integrate = Integrators(hidden, kernel)
        self.classify = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, people))

    def forward(self, x):
        return self.classify(self.integrate(self.inp(x)).amax(1))


class Walks(torch.utils.data.Dataset):
    def __init__(self, length, people):
        self.walks = torch.randn(2000, length, 6)
        self.who = torch.randint(people, (2000,))

    def __len__(self):
        return len(self.who)

    def __getitem__(self, i):
        return self.walks[i], self.who[i]


if __name__ == "__main__":
    args = arguments(__doc__, batch_size=32, length=120, hidden=24)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    loader = torch.utils.data.DataLoader(Walks(args.length, 20), args.batch_size, shuffle=True)
    model = Gait(6, args.hidden, 20, args.fixed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    over = False
    while not over:
        for x, who in loader:
            loss = nn.functional.cross_entropy(model(x), who)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            over = log.step(loss)
            if over:
                break
