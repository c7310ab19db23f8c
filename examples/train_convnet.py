"""Train a small convolutional network on scikit-learn's handwritten digits, augmented on the fly.

python examples/train_convnet.py --batch-size 64 --workers 1 --memory-format channels_last
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

SIDE = 16  # pixels of an augmented image; the originals have 8


class Digits(Dataset[tuple[Tensor, int]]):
    """The digits, enlarged and freshly rotated, shifted, scaled and made noisy at every access."""

    def __init__(self, images: Tensor, labels: Tensor, *, augment: bool) -> None:
        self.images = images
        self.labels = labels.tolist()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        image = self.distort(image) if self.augment else self.enlarge(image)
        return image, self.labels[index]

    @staticmethod
    def enlarge(image: Tensor) -> Tensor:
        return F.interpolate(image[None], size=(SIDE, SIDE), mode="bilinear")[0]

    @staticmethod
    def distort(image: Tensor) -> Tensor:
        """A random affine map, brightness and noise."""
        turn, zoom, x, y, brightness = (torch.rand(5) * 2 - 1).tolist()
        angle, scale = turn * math.radians(15), 1 + 0.1 * zoom
        cosine, sine = scale * math.cos(angle), scale * math.sin(angle)
        matrix = torch.tensor([[[cosine, -sine, 0.15 * x], [sine, cosine, 0.15 * y]]])
        grid = F.affine_grid(matrix, [1, 1, SIDE, SIDE], align_corners=False)
        image = F.grid_sample(image[None], grid, align_corners=False)[0]
        return image.mul_(1 + 0.2 * brightness).add_(torch.randn_like(image), alpha=0.05)


class ConvNet(nn.Module):
    """Three stages of two convolutions, each stage at half the resolution of the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for stage in range(3):
            out = width * 2**stage
            for _ in range(2):
                layers += [
                    nn.Conv2d(channels, out, 3, padding=1, bias=False),
                    nn.BatchNorm2d(out),
                    nn.ReLU(inplace=True),
                ]
                channels = out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classify = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x).mean(dim=(2, 3)))


def load_data(held_out: int) -> tuple[Digits, Digits]:
    """The training digits, augmented, and the held-out ones, plain."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    return (
        Digits(images[held_out:], labels[held_out:], augment=True),
        Digits(images[:held_out], labels[:held_out], augment=False),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits, device: str) -> float:
    """Share of `data` that `model` gets right."""
    model.eval()
    right = 0
    for images, labels in DataLoader(data, batch_size=256):
        right += int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
    model.train()
    return right / len(data)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--batch-size", type=int, default=64)
    add("--workers", type=int, default=0, help="DataLoader processes")
    add("--precision", choices=["fp32", "bf16"], default="fp32")
    add("--memory-format", choices=["contiguous", "channels_last"], default="contiguous")
    add("--compile", action="store_true", help="compile the model with torch.compile")
    add("--steps", type=int, default=300)
    add("--learning-rate", type=float, default=0.05)
    add("--width", type=int, default=16, help="channels of the first stage")
    add("--held-out", type=int, default=297, help="digits kept for the final accuracy")
    add("--log-every", type=int, default=50)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    training, held_out = load_data(args.held_out)
    loader = DataLoader(
        training,
        batch_size=args.batch_size,
        sampler=RandomSampler(training, replacement=True, num_samples=args.batch_size * args.steps),
        num_workers=args.workers,
        pin_memory=args.device.startswith("cuda"),
    )
    layout = {
        "contiguous": torch.contiguous_format,
        "channels_last": torch.channels_last,
    }[args.memory_format]
    model: nn.Module = ConvNet(args.width).to(args.device, memory_format=layout)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.steps))
    autocast = (
        torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)
        if args.precision == "bf16"
        else contextlib.nullcontext()
    )

    started = time.perf_counter()
    for step, (images, labels) in enumerate(loader, start=1):
        images = images.to(args.device, memory_format=layout, non_blocking=True)
        labels = labels.to(args.device, non_blocking=True)
        with autocast:
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 1 or step % args.log_every == 0 or step == args.steps:
            rate = step * args.batch_size / (time.perf_counter() - started)
            print(f"step {step:5d}  loss {loss.item():.3f}  {rate:,.0f} samples/s", flush=True)
    print(f"held-out accuracy {accuracy(model, held_out, args.device):.1%}")


if __name__ == "__main__":
    main()
