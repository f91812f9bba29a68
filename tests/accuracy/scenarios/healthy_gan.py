"""Two nets against each other on points in the plane of a few hundred dimensions."""

import itertools

import torch
from torch import nn

from runlog import RunLog, arguments


def mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class GAN:
    def __init__(self, width, latent, dim):
        self.latent = latent
        self.generator = mlp(latent, width, width, dim)
        self.critic = mlp(dim, width, width, 1)
        self.g_optim = torch.optim.Adam(self.generator.parameters(), 2e-4, betas=(0.5, 0.999))
        self.d_optim = torch.optim.Adam(self.critic.parameters(), 2e-4, betas=(0.5, 0.999))

    def critic_step(self, real):
        fake = self.generator(torch.randn(len(real), self.latent)).detach()
        loss = nn.functional.softplus(-self.critic(real)).mean() + nn.functional.softplus(self.critic(fake)).mean()
        self.d_optim.zero_grad()
        loss.backward()
        self.d_optim.step()
        return loss

    def generator_step(self, size):
        fake = self.generator(torch.randn(size, self.latent))
        loss = nn.functional.softplus(-self.critic(fake)).mean()
        self.g_optim.zero_grad()
        loss.backward()
        self.g_optim.step()
        return loss


def main():
    args = arguments(__doc__, batch_size=128, width=640)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    gan = GAN(args.width, 64, 256)
    mixing = torch.randn(8, 256)
    while True:
        real = torch.randn(args.batch_size, 8) @ mixing
        gan.critic_step(real)
        if log.step(gan.generator_step(args.batch_size)):
            break


if __name__ == "__main__":
    main()
