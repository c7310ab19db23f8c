"""A small Wasserstein GAN: three critic steps, then one of the generator."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds per generator step")
parser.add_argument("--critic-steps", type=int, default=3)
args = parser.parse_args()

generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)

for _ in range(args.steps):
    for _ in range(args.critic_steps):
        real = torch.randn(64, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.3]])
        fake = generator(torch.randn(64, 8)).detach()
        of_critic.zero_grad()
        (critic(fake).mean() - critic(real).mean()).backward()
        of_critic.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.05, 0.05)
    time.sleep(args.pause)
    of_generator.zero_grad()
    (-critic(generator(torch.randn(64, 8))).mean()).backward()
    of_generator.step()
