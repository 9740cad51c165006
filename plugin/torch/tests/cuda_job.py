#!/usr/bin/env python3
"""The package on CUDA tensors, as a job: trains the example, compares optimizers with those in host memory, goes from the device
to the host and through the hook. Says what it did; tests/gpu/run starts it on a machine with a GPU.

  cuda_job.py --ranks 2               # ranks share devices where there are fewer
  cuda_job.py --ranks 2 --stand-in    # without a GPU: see stand_in_cuda.py

Needs PyTorch with CUDA, tqdm, and the variables that say where the libraries are.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TOLERANCE = 1e-5  # of the largest parameter; with one and two ranks it should be none
PATIENCE = 280  # seconds; only a hang takes so long


def say(text):
    if os.environ["RANK"] == "0":
        print(f"did: {text}", flush=True)


# ---- on a rank ----


class Place:
    """The device, or the stand-in's."""

    def __init__(self, stand_in):
        import torch

        self.stand_in = None
        if stand_in:
            import stand_in_cuda

            self.stand_in = stand_in_cuda
            stand_in_cuda.install()
        torch.set_num_threads(1)
        torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())

    def copy(self, tensor):
        return self.stand_in.tensor_like(tensor) if self.stand_in else tensor.cuda()

    def numbers(self, network):
        import torch

        torch.cuda.synchronize()
        return torch.cat([each.detach().cpu().float().flatten() for each in network.parameters()])


def example(folder, place):
    """Trains the example on the device, and goes on with its checkpoint in host memory."""
    sys.path.insert(0, str(HERE.parent / "examples"))
    import torch
    import train

    text = [ROOT / "LICENSE", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    small = ["--width", "32", "--layers", "1", "--batch", "4", "--freeze-step", "12", "--checkpoint", f"{folder}/example"]
    for device, steps in (("cuda", 40), ("cpu", 43)):
        sys.argv = ["train.py", "--device", device, "--steps", str(steps), *small, "--text", *map(str, text)]
        train.main()
        torch.cuda.synchronize()
        losses = json.loads(Path(f"{folder}/example/latest.json").read_text())["losses"]
        assert len(losses) == steps, f"{len(losses)} losses of {steps} steps"
        first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
        assert last < 0.9 * first, f"the loss went from {first} to {last}"
        say(f"examples/train.py --device {device} to step {steps}: loss {first:.3f} to {last:.3f}, 1 bit from step 13 on")


def twins(kind, dtype, place, **arguments):
    """A model in host memory and one on the device, with an optimizer of each."""
    import models
    import onebit.torch

    host, device = models.model(dtype=dtype), models.model(dtype=dtype).to("cuda")
    both = [
        getattr(onebit.torch, kind)(network.named_parameters(), lr=1e-2, name=name, **arguments)
        for name, network in (("host", host), ("device", device))
    ]
    return host, device, both


def take_step(rank, step, host, device, both, place, dtype):
    """With the gradients of the host's model in both."""
    import models
    import torch

    host.zero_grad()
    inputs, targets = models.batch(rank, step, dtype=dtype)
    torch.nn.functional.mse_loss(host(inputs).float(), targets.float()).backward()
    for own, theirs in zip(host.parameters(), device.parameters()):
        theirs.grad = place.copy(own.grad)
    for each in both:
        each.step()


def same_as_host(rank, place, folder):
    """Steps under two streams against the host's; then the device's state in host memory."""
    import models
    import onebit.torch
    import torch

    kinds = {
        "OneBitLamb": {"freeze_step": 5},
        "OneBitAdam": {"freeze_step": 5, "gradient_clipping": 0.5},
        "ZeroOneAdam": {"var_freeze_step": 6, "local_step_scaler": 4},
        "Lamb": {},
    }
    for kind, arguments in kinds.items():
        for dtype in (torch.float32, torch.bfloat16):
            host, device, both = twins(kind, dtype, place, **arguments)
            other = torch.cuda.Stream()
            worst = 0.0
            for step in range(1, 21):
                if step % 3 == 0:
                    other.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(other):
                        take_step(rank, step, host, device, both, place, dtype)
                    torch.cuda.current_stream().wait_stream(other)
                else:
                    take_step(rank, step, host, device, both, place, dtype)
                ours, theirs = place.numbers(host), place.numbers(device)
                worst = max(worst, float((ours - theirs).abs().max() / ours.abs().max()))
            assert worst <= (TOLERANCE if dtype == torch.float32 else 2e-2), f"{kind}, {dtype}: {worst}"
            info = both[1].info()
            assert both[1].carrier() == "nccl" and info.steps == both[0].info().steps == 20
            bits = "the same bits" if worst == 0 else f"at most {worst:.1e} apart"
            say(f"{kind} in {str(dtype)[6:]}: 20 steps as the host's, {bits}; {info.sent_bytes} bytes sent, {info.ratio or 1:.1f} times less than fp32")

            both[1].save(f"{folder}/{kind}-{dtype}")
            both[1].comm.barrier()
            moved = models.model(dtype=dtype)
            on_host = getattr(onebit.torch, kind)(moved.named_parameters(), lr=1e-2, name="device", **arguments)
            on_host.load(f"{folder}/{kind}-{dtype}", step=20)
            assert torch.equal(place.numbers(moved), place.numbers(device)), f"{kind}: loaded other weights"
            take_step(rank, 21, moved, device, [on_host, both[1]], place, dtype)
            apart = float((place.numbers(moved) - place.numbers(device)).abs().max())
            assert apart <= 1e-4 if dtype == torch.float32 else apart <= 2e-2, f"{kind}: {apart} apart after a step"
            for each in [*both, on_host]:
                each.close()
    say("each state was saved on the device, loaded in host memory with the same bits, and gone on with on both")


def mixed_precision(rank, place):
    """A GradScaler with fp16 autocast, one rank of which sees an infinite gradient."""
    import models
    import onebit.torch
    import torch

    if place.stand_in:
        say("GradScaler and autocast: not on the stand-in, whose PyTorch has no CUDA")
        return
    network = models.model().cuda()
    optimizer = onebit.torch.OneBitLamb(network.named_parameters(), lr=1e-2, freeze_step=5, name="mixed")
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0**10)
    last = int(os.environ["WORLD_SIZE"]) - 1
    losses = []
    for step in range(1, 31):
        optimizer.zero_grad()
        inputs, targets = (each.cuda() for each in models.batch(rank, step % 5))
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(network(inputs), targets)
        scaler.scale(loss).backward()
        if step == 10 and rank == last:
            next(network.parameters()).grad[0, 0] = float("inf")
        scaler.step(optimizer)
        assert optimizer.step_was_skipped == (step == 10), f"step {step}"
        scaler.update()
        losses.append(loss.item())
    scales = optimizer.comm.allgather(torch.tensor([scaler.get_scale()]), torch.empty(last + 1))
    assert losses[-1] < losses[0] and scales[-1] == 2.0**9, (losses, scales)
    say(f"GradScaler with fp16 autocast: 30 steps, step 10 skipped on all ranks, loss {losses[0]:.3f} to {losses[-1]:.3f}")


def hook(rank, place, port):
    """DistributedDataParallel with the hook, and under an optimizer that keeps gradients local."""
    import models
    import onebit.torch
    import torch
    import torch.distributed as dist

    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)

    def learn(wrapped, optimizer):
        losses = []
        for step in range(1, 41):
            optimizer.zero_grad()
            inputs, targets = (each.to("cuda") for each in models.batch(rank, step % 5))
            loss = torch.nn.functional.mse_loss(wrapped(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), losses
        mine = place.numbers(wrapped)
        everywhere = torch.empty(size, len(mine))
        onebit.torch.default_communicator().allgather(mine, everywhere)
        assert all(torch.equal(each, everywhere[0]) for each in everywhere), "ranks have other weights"
        return f"loss {losses[0]:.3f} to {losses[-1]:.3f}, the same weights on all ranks"

    network = models.model().to("cuda")
    wrapped = torch.nn.parallel.DistributedDataParallel(network)
    state = onebit.torch.HookState(warmup_calls=3, settings={"ONEBIT_MIN_SIZE": 0})
    wrapped.register_comm_hook(state, onebit.torch.ddp_hook)
    told = learn(wrapped, torch.optim.SGD(network.parameters(), lr=0.1))
    decisions = list(state.decisions.values())
    assert decisions and all(each.startswith("1bit" if size > 1 else "exact") for each in decisions), decisions
    say(f"ddp_hook with SGD: 40 steps, {told}; {decisions[0]}")
    state.close()

    wrapped = torch.nn.parallel.DistributedDataParallel(models.model().to("cuda"))
    optimizer = onebit.torch.OneBitAdam(wrapped.parameters(), lr=1e-2, freeze_step=10, name="ddp")
    say(f"OneBitAdam under DistributedDataParallel: 40 steps, {learn(wrapped, optimizer)}")
    dist.destroy_process_group()


def run_rank(stand_in, folder, port):
    import torch

    warnings.simplefilter("ignore")
    place = Place(stand_in)
    rank = int(os.environ["RANK"])
    say(f"PyTorch {torch.__version__}, {'the stand-in for CUDA' if stand_in else torch.cuda.get_device_name()}")
    example(folder, place)
    same_as_host(rank, place, folder)
    mixed_precision(rank, place)
    hook(rank, place, port)
    import onebit.torch

    onebit.torch.default_communicator().close()


# ---- the job ----


def run_job(ranks, stand_in):
    sys.path.insert(0, str(HERE))
    from ranks import free_port

    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ONEBIT_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "ONEBIT_TIMEOUT": "60",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rank-of", folder, str(free_port())] + (["--stand-in"] if stand_in else [])
        # Ranks that share a device are machines of their own to NCCL.
        started = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"rank{rank}"})
            for rank in range(ranks)
        ]
        end = time.monotonic() + PATIENCE
        failed = False
        while any(each.poll() is None for each in started) and not failed and time.monotonic() < end:
            failed = any(each.poll() not in (None, 0) for each in started)
            time.sleep(0.1)
        if failed:
            time.sleep(2)  # the others say what they see of it
        for rank, each in enumerate(started):
            if each.poll() is None:
                each.send_signal(signal.SIGKILL)
                print(f"rank {rank} had not ended", flush=True)
            failed = each.wait() != 0 or failed
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--rank-of", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        run_rank(options.stand_in, *options.rank_of)
        return 0
    try:
        import torch
        import tqdm  # noqa: F401
    except ImportError as error:
        print(f"{sys.executable}: {error}; name a Python that has PyTorch and tqdm, by tests/gpu/run --python")
        return 1
    if not options.stand_in and not torch.cuda.is_available():
        print(f"{sys.executable}: its PyTorch {torch.__version__} sees no CUDA device; name another by tests/gpu/run --python")
        return 1
    return run_job(options.ranks, options.stand_in)


if __name__ == "__main__":
    sys.exit(main())
