"""Train a small byte-level GPT on text every machine has: the sources of Python's standard library.

python examples/train_gpt.py --batch-size 16 --precision bf16 --steps 500
"""

from __future__ import annotations

import argparse
import contextlib
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 256  # bytes


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer whose output layer shares the token embedding."""

    def __init__(
        self, *, context: int, width: int, layers: int, heads: int, checkpointing: bool
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def standard_library(limit: int) -> Tensor:
    """The first `limit` bytes of the standard library's top-level modules, in order of name."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


def sample_batch(data: Tensor, batch_size: int, context: int, device: str) -> tuple[Tensor, Tensor]:
    """`batch_size` random windows and the same windows one byte later."""
    starts = torch.randint(len(data) - context - 1, (batch_size, 1))
    windows = data[starts + torch.arange(context + 1)].long().to(device)
    return windows[:, :-1], windows[:, 1:]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--batch-size", type=int, default=16, help="windows per micro-batch")
    add("--accumulation", type=int, default=1, help="micro-batches per optimizer step")
    add("--precision", choices=["fp32", "bf16"], default="fp32")
    add("--compile", action="store_true", help="compile the model with torch.compile")
    add("--checkpointing", choices=["on", "off"], default="off", help="recompute activations")
    add("--optimizer", choices=["foreach", "fused", "loop"], default="foreach", help="AdamW's kind")
    add("--steps", type=int, default=500)
    add("--learning-rate", type=float, default=1e-3)
    add("--context", type=int, default=32, help="bytes per window")
    add("--width", type=int, default=192)
    add("--layers", type=int, default=2)
    add("--heads", type=int, default=6)
    add("--text-bytes", type=int, default=1_000_000)
    add("--log-every", type=int, default=50)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width} isn't a multiple of --heads {args.heads}")
    return args


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    data = standard_library(args.text_bytes)
    model: nn.Module = GPT(
        context=args.context,
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        checkpointing=args.checkpointing == "on",
    ).to(args.device)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=args.learning_rate,
        foreach=args.optimizer == "foreach",
        fused=args.optimizer == "fused",
    )
    warm_up = min(20, args.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / warm_up))
    autocast = (
        torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)
        if args.precision == "bf16"
        else contextlib.nullcontext()
    )

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        total = torch.zeros((), device=args.device)
        for _ in range(args.accumulation):
            x, y = sample_batch(data, args.batch_size, args.context, args.device)
            with autocast:
                logits = model(x)
                loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) / args.accumulation
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 1 or step % args.log_every == 0 or step == args.steps:
            rate = step * args.batch_size * args.accumulation / (time.perf_counter() - started)
            print(f"step {step:5d}  loss {total.item():.3f}  {rate:,.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
