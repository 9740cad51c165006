#!/usr/bin/env python3
"""Trains a small language model on real text with one of onebit's optimizers.

  torchrun --nproc_per_node 4 train.py                              # 1-bit LAMB on the licences in every Debian system
  torchrun --nproc_per_node 4 train.py --optimizer Lamb --plot lamb.png
  torchrun --nproc_per_node 4 train.py --device cuda                # a GPU for each rank
  torchrun --nproc_per_node 4 train.py --checkpoint run/            # goes on from there, on any number of ranks
  torchrun --nproc_per_node 4 --max_restarts 3 train.py --checkpoint run/   # and again after a rank was killed

The batch of a step is the same for every number of ranks, which share it out. A progress bar shows loss and ratio, --plot
draws the loss over steps and over bytes sent.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import onebit
import onebit.torch
import torch
from torch import nn

CONTEXT = 64  # characters that the model sees
ALPHABET = 128  # ASCII; other characters are left out
LICENCES = Path("/usr/share/common-licenses")
TEST_PART = 0.1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["OneBitLamb", "OneBitAdam", "ZeroOneAdam", "Lamb", "Adam"]
    parser.add_argument("--optimizer", choices=kinds, default="OneBitLamb")
    parser.add_argument("--deepspeed-config", type=Path, help="a DeepSpeed JSON that names the optimizer, instead")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=None, help="by default what suits the optimizer")
    parser.add_argument("--freeze-step", type=int, default=None, help="end of the warm-up; by default a quarter of the steps")
    parser.add_argument("--batch", type=int, default=32, help="sequences a step, of all ranks together")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--text", type=Path, nargs="*", help=f"files to learn; by default those of {LICENCES}")
    parser.add_argument("--checkpoint", type=Path, help="a directory to save to, and to go on from")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--plot", type=Path, help="an image of the loss over steps and over bytes")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the model is")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch in each rank")
    return parser.parse_args()


class LanguageModel(nn.Module):
    """A transformer that tells the next character."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(ALPHABET, width)
        self.positions = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        encoder: Any = nn.TransformerEncoder
        self.layers = encoder(layer, layers)
        self.out = nn.Linear(width, ALPHABET)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -math.inf).triu(1))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(text) + self.positions.weight
        logits: torch.Tensor = self.out(self.layers(hidden, mask=self.mask))
        return logits


def read_text(files: Optional[List[Path]]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Characters to learn from, and to test with."""
    paths = files or sorted(path for path in LICENCES.iterdir() if path.is_file() and not path.is_symlink())
    data = b"\n".join(path.read_bytes() for path in paths)
    characters = torch.tensor([each for each in data if each < ALPHABET])
    cut = int(len(characters) * (1 - TEST_PART))
    return characters[:cut], characters[cut:]


def sequences(text: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """`count` stretches of CONTEXT + 1 characters, the same for every rank."""
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.reshape(-1, ALPHABET), batch[:, 1:].reshape(-1))


def make_optimizer(options: argparse.Namespace, model: nn.Module) -> onebit.torch.OneBitOptimizer:
    if options.deepspeed_config is not None:
        return onebit.torch.from_deepspeed_config(model.named_parameters(), options.deepspeed_config)
    kind = options.optimizer
    given: Dict[str, Any] = {"lr": options.lr or (2e-2 if "Lamb" in kind else 2e-3)}
    freeze_step = options.freeze_step or max(2, options.steps // 4)
    if kind.startswith("OneBit"):
        given["freeze_step"] = freeze_step
    if kind == "ZeroOneAdam":
        given.update(var_freeze_step=freeze_step, local_step_scaler=max(1, options.steps // 4))
    made: onebit.torch.OneBitOptimizer = getattr(onebit.torch, kind)(model.named_parameters(), **given)
    return made


class Progress:
    """What rank 0 knows and shows of a run: the loss of each step, and the bytes sent until then. Goes into checkpoints."""

    def __init__(self) -> None:
        self.losses: List[float] = []
        self.bytes: List[int] = []
        self.earlier_bytes = 0  # of the runs before this one

    def add(self, loss: float, sent: int) -> None:
        self.losses.append(loss)
        self.bytes.append(self.earlier_bytes + sent)

    def plot(self, path: Path, title: str) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, (over_steps, over_bytes) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
        over_steps.plot(range(1, len(self.losses) + 1), self.losses)
        over_steps.set(xlabel="step", ylabel="loss (nats a character)", title=title)
        over_bytes.plot([each / 2**20 for each in self.bytes], self.losses)
        over_bytes.set(xlabel="MiB sent by rank 0")
        figure.tight_layout()
        figure.savefig(path)
        pyplot.close(figure)


def save(directory: Path, step: int, optimizer: onebit.torch.OneBitOptimizer, scheduler: Any, progress: Progress) -> None:
    """Saves everything; "latest" names the new checkpoint once all ranks have written their part."""
    optimizer.save(str(directory / f"step-{step}"))  # the weights too
    optimizer.comm.barrier()
    if optimizer.comm.rank != 0:
        return
    state = {"step": step, "scheduler": scheduler.state_dict(), "losses": progress.losses, "bytes": progress.bytes}
    unfinished = directory / "latest.tmp"
    unfinished.write_text(json.dumps(state))
    unfinished.replace(directory / "latest.json")
    for old in directory.glob("step-*"):
        if old.name != f"step-{step}":
            shutil.rmtree(old)


def resume(directory: Path, optimizer: onebit.torch.OneBitOptimizer, scheduler: Any, progress: Progress) -> int:
    """The step of the latest checkpoint, loaded; 0 if there is none."""
    latest = directory / "latest.json"
    if not latest.exists():
        return 0
    state = json.loads(latest.read_text())
    optimizer.load(str(directory / f"step-{state['step']}"))
    scheduler.load_state_dict(state["scheduler"])
    progress.losses, progress.bytes = state["losses"], state["bytes"]
    progress.earlier_bytes = progress.bytes[-1] if progress.bytes else 0
    return int(state["step"])


def rate_factor(step: int, steps: int) -> float:
    """What the learning rate is multiplied with: up for 20 steps, then down to a tenth."""
    return min(1.0, (step + 1) / 20) * (0.1 + 0.9 * max(0.0, 1 - step / steps))


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)  # the same model on all ranks
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    comm = onebit.torch.default_communicator()
    learned, tested = read_text(options.text)
    model = LanguageModel(options.width, options.layers).to(options.device)
    optimizer = make_optimizer(options, model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, options.steps))
    progress = Progress()
    first = resume(options.checkpoint, optimizer, scheduler, progress) if options.checkpoint else 0
    if comm.rank == 0:
        print(f"{type(optimizer).__name__}, {comm.size} ranks, {sum(each.numel() for each in model.parameters())} parameters")
        if first:
            print(f"going on from step {first}", flush=True)

    from tqdm import tqdm

    with tqdm(initial=first, total=options.steps, disable=comm.rank != 0, unit="step") as bar:
        for step in range(first + 1, options.steps + 1):
            batch = sequences(learned, options.batch, seed=step)[comm.rank :: comm.size]
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model, batch.to(options.device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            mean = comm.allreduce(loss.detach().reshape(1).cpu(), onebit.AVG).item()
            progress.add(mean, optimizer.info().sent_bytes)
            bar.set_postfix(loss=f"{mean:.3f}", sent=f"{progress.bytes[-1] / 2**20:.1f} MiB")
            bar.update()
            if options.checkpoint and (step % options.save_every == 0 or step == options.steps):
                save(options.checkpoint, step, optimizer, scheduler, progress)

    model.eval()
    with torch.no_grad():
        final = loss_of(model, sequences(tested, 256, seed=0).to(options.device)).item()
    if comm.rank == 0:
        print(onebit.torch.report())
        print(f"test loss {final:.4f}", flush=True)
        if options.plot:
            progress.plot(options.plot, f"{type(optimizer).__name__}, {comm.size} ranks")
    comm.close()


if __name__ == "__main__":
    main()
