"""A training loop that notes how long each of its steps took, by its own clock."""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(args.threads)
model = nn.Sequential(
    nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, args.width)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(2, args.batch, args.width).unbind()

moments = [time.perf_counter()]
for _ in range(args.steps):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    moments.append(time.perf_counter())

steps = [after - before for before, after in zip(moments, moments[1:])]  # noqa: B905, RUF007
args.out.write_text(json.dumps(steps))
