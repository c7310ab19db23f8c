"""Lightning's Trainer on a small module."""

import argparse
import time

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """A two-layer network on noise."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.pause = pause
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        time.sleep(self.pause)
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=args.steps,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = DataLoader(TensorDataset(torch.randn(args.steps * 8, 16)), batch_size=8)
trainer.fit(Module(args.pause), loader)
