"""A loop prepared by accelerate, with its gradient accumulation over two micro-batches."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds per micro-batch")
args = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(args.steps * 2 * 8, 16)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (x,) in loader:
    with accelerator.accumulate(model):
        time.sleep(args.pause)
        loss = model(x).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
