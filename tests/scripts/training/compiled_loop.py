"""A loop over a model compiled with torch.compile: the first steps take seconds."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

model = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(args.steps):
    time.sleep(args.pause)
    optimizer.zero_grad()
    model(torch.randn(32, 16)).square().mean().backward()
    optimizer.step()
