"""What several tests train: a small model on data that each rank has of its own."""

from __future__ import annotations

import torch


def model(width=16, dtype=torch.float32):
    """The same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 4), torch.nn.LayerNorm(4)
    ).to(dtype)


def batch(rank, step, size=8, dtype=torch.float32):
    """Inputs and targets of a rank's step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, 8, generator=generator)
    return inputs.to(dtype), torch.sin(inputs[:, :4]).to(dtype)


def loss_of(network, rank, step, dtype=torch.float32):
    inputs, targets = batch(rank, step, dtype=dtype)
    return torch.nn.functional.mse_loss(network(inputs), targets)


def train(network, optimizer, rank, steps, first=1):
    """Steps `first` to `steps`; returns the losses."""
    losses = []
    for step in range(first, steps + 1):
        optimizer.zero_grad()
        loss = loss_of(network, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(network):
    """All parameters as numbers."""
    return torch.cat([each.detach().float().flatten() for each in network.parameters()]).tolist()
