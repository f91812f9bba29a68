"""A healthy torch loop without modules and without an optimizer: functions, gradients, and an update by hand."""

from itertools import pairwise

import torch

SIZES = (256, 768, 768, 10)


def net(weights, x):
    for weight in weights[:-1]:
        x = torch.relu(torch.matmul(x, weight))
    return torch.matmul(x, weights[-1])


def cost(weights, x, y):
    scores = net(weights, x)
    return (torch.logsumexp(scores, 1) - scores.gather(1, y[:, None])[:, 0]).mean()


def main():
    torch.manual_seed(0)
    weights = [(torch.randn(a, b) / a**0.5).requires_grad_() for a, b in pairwise(SIZES)]
    while True:
        x, y = torch.randn(512, SIZES[0]), torch.randint(SIZES[-1], (512,))
        cost(weights, x, y).backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.05 * weight.grad
                weight.grad = None


if __name__ == "__main__":
    main()
