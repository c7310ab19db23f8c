"""One optimizer per parameter, stepped inside backward, so that no gradient outlives its use."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}


def apply(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(apply)

for _ in range(args.steps):
    time.sleep(args.pause)
    model(torch.randn(32, 16)).square().mean().backward()
