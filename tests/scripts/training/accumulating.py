"""Four micro-batches per step from a DataLoader with forked workers; the loop ends by itself."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per micro-batch")
    args = parser.parse_args()

    data = TensorDataset(torch.randn(args.steps * 4 * 8, 16))
    loader = DataLoader(data, batch_size=8, num_workers=2, shuffle=True)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (x,) in enumerate(loader, start=1):
        time.sleep(args.pause)
        (model(x).square().mean() / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
