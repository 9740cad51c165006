"""What is learned: characters of the licence texts by a small transformer, and handwritten digits by a small convolutional
network. Both from what Debian ships. The batch of a step depends on seed and step only, and ranks share it out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Tuple

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "plugin/torch"), str(ROOT / "plugin/torch/examples")]

import train as example  # noqa: E402  the example's language model

TESTED = 256  # sequences of the test text
DIGITS_TESTED = 297  # images, the last of the file


def seed_of(seed: int, step: int) -> int:
    return seed * 1_000_003 + step


class Text:
    """A transformer of two layers that tells the next character."""

    name = "text"
    title = "language model"
    batch_size = 16
    steps = 1200
    rates = {"lamb": 1e-2, "adam": 6e-3}  # the best for LAMB and Adam of those tried: docs/convergence.md

    def __init__(self) -> None:
        self.learned, self.tested = example.read_text(None)

    def model(self) -> nn.Module:
        return example.LanguageModel(64, 2)

    def batch(self, seed: int, step: int) -> torch.Tensor:
        return example.sequences(self.learned, self.batch_size, seed_of(seed, step))

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return example.loss_of(model, batch)

    def test(self, model: nn.Module) -> float:
        """Loss on the test part."""
        return float(self.loss(model, example.sequences(self.tested, TESTED, seed=0)))


class Images:
    """A convolutional network that tells the digit of an image of 8 x 8."""

    name = "images"
    title = "image classifier"
    batch_size = 64
    steps = 800
    rates = {"lamb": 2e-2, "adam": 1.2e-2}

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "digits.csv"
            subprocess.run([str(ROOT / "perf/digits"), str(file)], check=True)
            rows = [[float(word) for word in line.split(",")] for line in file.read_text().splitlines()]
        table = torch.tensor(rows)
        images, digits = (table[:, :-1] / 16).reshape(-1, 1, 8, 8), table[:, -1].long()
        self.learned = images[:-DIGITS_TESTED], digits[:-DIGITS_TESTED]
        self.tested = images[-DIGITS_TESTED:], digits[-DIGITS_TESTED:]

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def batch(self, seed: int, step: int) -> "Tuples":
        images, digits = self.learned
        chosen = torch.randint(len(digits), (self.batch_size,), generator=torch.Generator().manual_seed(seed_of(seed, step)))
        # Moved by up to one pixel each way, so that there is something to learn for longer than a few passes.
        move = torch.randint(-1, 2, (2,), generator=torch.Generator().manual_seed(seed_of(seed, step))).tolist()
        return Tuples(torch.roll(images[chosen], move, (2, 3)), digits[chosen])

    def loss(self, model: nn.Module, batch: "Tuples") -> torch.Tensor:
        # Smoothed targets: the loss ends well above 0, so that its last percent means something.
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets, label_smoothing=0.1)

    def test(self, model: nn.Module) -> float:
        """Loss on the test part."""
        return float(self.loss(model, Tuples(*self.tested)))


class Tuples:
    """Inputs and targets that can be shared out as one tensor can."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __getitem__(self, part: slice) -> "Tuples":
        return Tuples(self.inputs[part], self.targets[part])


TASKS: Tuple[Any, ...] = (Text, Images)
