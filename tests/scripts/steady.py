"""A training script whose step time is known: 4 ms + 1 ms a sample, or faster with --fast."""

import argparse
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--fast", action="store_true")
parser.add_argument("--mode", default="ok")
options = parser.parse_args()

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seconds = (0.004 + 0.001 * options.batch_size) * (0.5 if options.fast else 1.0)
for _ in range(options.steps):
    loss = model(torch.ones(options.batch_size, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(seconds)
    optimizer.step()
    if options.mode == "oom" and options.batch_size >= 8:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
print("done", options.batch_size, options.fast)
