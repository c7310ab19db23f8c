"""Train a small recommendation model (DLRM): embedding tables, Zipf-distributed indices, a click.

python examples/train_dlrm.py --batch-size 512 --gradients sparse
"""

from __future__ import annotations

import argparse
import contextlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DLRM(nn.Module):
    """A bottom MLP for the dense features, a bag per table, their dot products, a top MLP."""

    def __init__(self, *, tables: int, rows: int, width: int, dense: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for _ in range(tables)
        )
        for bag in self.bags:
            nn.init.normal_(bag.weight, std=0.05)
        self.bottom = nn.Sequential(
            nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU()
        )
        pairs = torch.combinations(torch.arange(tables + 1))
        self.register_buffer("left", pairs[:, 0], persistent=False)
        self.register_buffer("right", pairs[:, 1], persistent=False)
        self.top = nn.Sequential(
            nn.Linear(width + len(pairs), 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom] + [b(i) for b, i in zip(self.bags, indices)], dim=1)  # noqa: B905
        products = vectors @ vectors.transpose(1, 2)
        interactions = products[:, self.left, self.right]
        return self.top(torch.cat([bottom, interactions], dim=1)).squeeze(1)


class Clicks:
    """An endless stream of made-up impressions with a hidden rule to learn.

    Indices follow Zipf's law, as real ones do: few rows are hot, most are seldom met. Each table
    scatters its popular rows by a random permutation, so they don't lie side by side in memory.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.random = np.random.default_rng(args.seed)
        self.args = args
        weights = np.arange(1, args.rows + 1) ** -args.skew
        self.cumulative = np.cumsum(weights) / weights.sum()
        self.places = np.stack([self.random.permutation(args.rows) for _ in range(args.tables)])
        self.tastes = self.random.normal(size=(args.tables, args.rows)).astype(np.float32)
        self.slopes = self.random.normal(size=args.dense).astype(np.float32)

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Dense features (size, dense), indices (tables, size, pooling) and clicks (size)."""
        args = self.args
        dense = self.random.standard_normal((size, args.dense), dtype=np.float32)
        shape = (args.tables, size, args.pooling)
        ranks = np.searchsorted(self.cumulative, self.random.random(shape))
        table = np.arange(args.tables)[:, None, None]
        liking = self.tastes[table, ranks].sum(axis=(0, 2)) / (args.tables * args.pooling) ** 0.5
        chance = 1 / (1 + np.exp(-2 * liking - dense @ self.slopes / args.dense**0.5))
        clicks = (self.random.random(size) < chance).astype(np.float32)
        indices = self.places[table, ranks]
        return torch.from_numpy(dense), torch.from_numpy(indices), torch.from_numpy(clicks)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--batch-size", type=int, default=512, help="impressions per micro-batch")
    add("--accumulation", type=int, default=1, help="micro-batches per optimizer step")
    add("--precision", choices=["fp32", "bf16"], default="fp32")
    add("--gradients", choices=["sparse", "dense"], default="dense", help="of the tables")
    add("--steps", type=int, default=500)
    add("--learning-rate", type=float, default=0.02)
    add("--tables", type=int, default=8)
    add("--rows", type=int, default=20_000, help="rows per table")
    add("--width", type=int, default=16, help="columns per table")
    add("--pooling", type=int, default=4, help="indices per table and impression")
    add("--dense", type=int, default=13, help="dense features")
    add("--skew", type=float, default=1.05, help="exponent of Zipf's law")
    add("--log-every", type=int, default=50)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    clicks = Clicks(args)
    model = DLRM(
        tables=args.tables,
        rows=args.rows,
        width=args.width,
        dense=args.dense,
        sparse=args.gradients == "sparse",
    ).to(args.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.learning_rate)
    autocast = (
        torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)
        if args.precision == "bf16"
        else contextlib.nullcontext()
    )

    started = time.perf_counter()
    recent: list[float] = []
    for step in range(1, args.steps + 1):
        total = torch.zeros((), device=args.device)
        for _ in range(args.accumulation):
            dense, indices, clicked = (
                part.to(args.device) for part in clicks.batch(args.batch_size)
            )
            with autocast:
                logits = model(dense, indices)
            loss = F.binary_cross_entropy_with_logits(logits.float(), clicked)
            loss = loss / args.accumulation
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(total.item())
        if step == 1 or step % args.log_every == 0 or step == args.steps:
            rate = step * args.batch_size * args.accumulation / (time.perf_counter() - started)
            mean = sum(recent) / len(recent)
            print(f"step {step:5d}  loss {mean:.4f}  {rate:,.0f} samples/s", flush=True)
            recent.clear()


if __name__ == "__main__":
    main()
