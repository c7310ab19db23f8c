"""Checks that it was started as a module, then trains."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

assert Path(sys.argv[0]) == Path(__file__), sys.argv
assert Path(sys.path[0]).resolve() == Path.cwd(), sys.path
steps, pause = int(sys.argv[1]), float(sys.argv[2])
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(steps):
    time.sleep(pause)
    optimizer.zero_grad()
    model(torch.randn(32, 16)).square().mean().backward()
    optimizer.step()
