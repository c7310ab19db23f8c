"""Hugging Face's Trainer on a GPT-2 of two narrow layers, made from its configuration."""

import argparse
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Noise(Dataset[dict[str, torch.Tensor]]):
    """Random tokens."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(128, (16,))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per micro-batch")
    args = parser.parse_args()

    def collate(items: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
        time.sleep(args.pause)
        return {key: torch.stack([item[key] for item in items]) for key in items[0]}

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(
                GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=2)
            ),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=args.steps,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                use_cpu=True,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Noise(),
            data_collator=collate,
        )
        trainer.train()


if __name__ == "__main__":
    main()
