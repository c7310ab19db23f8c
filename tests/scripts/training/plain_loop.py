"""A loop as people write it: sys.argv read by hand, a file found beside `__file__`, a scheduler."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

steps, pause = int(sys.argv[1]), float(sys.argv[2])
source = torch.tensor(list(Path(__file__).read_bytes()[:512]), dtype=torch.float32)

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for _ in range(steps):
    time.sleep(pause)
    x = source.view(32, 16) / 128 + torch.randn(32, 16)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
