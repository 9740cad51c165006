"""DistributedDataParallel: its gradients compressed by the hook, or left local for an optimizer that exchanges them."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import onebit
import onebit.torch
import ranks
from models import flat, loss_of, model, train

torch.set_num_threads(1)


def begin():
    dist.init_process_group("gloo")


def wrapped(network, **arguments):
    return torch.nn.parallel.DistributedDataParallel(network, **arguments)


def large():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(8, 1200), torch.nn.Tanh(), torch.nn.Linear(1200, 300), torch.nn.Linear(300, 4))


def test_the_hook_in_its_warm_up_is_ddp():
    def body(rank, hooked):
        begin()
        network = wrapped(model())
        if hooked:
            network.register_comm_hook(onebit.torch.HookState(warmup_calls=100), onebit.torch.ddp_hook)
        train(network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), rank, 10)
        return flat(network)

    for hooked, plain in zip(ranks.run(2, body, True), ranks.run(2, body, False)):
        assert hooked == pytest.approx(plain, abs=1e-5)


def test_the_hook_compresses_after_its_warm_up_and_trains_all_ranks_alike():
    def body(rank):
        begin()
        network = wrapped(large(), bucket_cap_mb=0.5)
        state = onebit.torch.HookState(warmup_calls=2)
        network.register_comm_hook(state, onebit.torch.ddp_hook)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = train(network, optimizer, rank, 30)
        before = state.comm.stats()
        train(network, optimizer, rank, 31, 31)
        after = state.comm.stats()
        report = onebit.torch.report()
        state.close()
        assert state.comm.closed
        return losses, flat(network), state.decisions, {key: after[key] - before[key] for key in after}, str(report)

    first, second = ranks.run(2, body)
    assert first[1] == second[1]
    assert sum(first[0][-5:]) < sum(first[0][:5])
    assert len(first[2]) >= 2 and all(each.startswith("1bit") for each in first[2].values())
    assert first[3]["exact_calls"] == 0 and first[3]["compressed_calls"] == len(first[2])
    assert first[3]["wire_bytes_sent"] < first[3]["reduced_bytes"] / 20
    assert "ddp.bucket0: 1bit" in first[4]


def test_the_hook_warns_of_adam_plainly_and_once():
    def body(rank):
        begin()
        network = wrapped(model())
        network.register_comm_hook(onebit.torch.HookState(warmup_calls=1), onebit.torch.ddp_hook)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(network, torch.optim.AdamW(network.parameters()), rank, 5)
        return [str(each.message) for each in caught if "AdamW" in str(each.message)]

    (said,) = ranks.run(2, body)[0]
    assert "variance" in said and "OneBitAdam" in said


def test_the_hooks_residuals_are_saved_and_loaded(tmp_path):
    def body(rank, resumed):
        begin()
        network = wrapped(model())
        state = onebit.torch.HookState(warmup_calls=1)
        network.register_comm_hook(state, onebit.torch.ddp_hook)
        if resumed:
            state.comm.load_residuals(str(tmp_path))
        else:
            train(network, torch.optim.SGD(network.parameters(), lr=0.1), rank, 5)
            state.comm.save_residuals(str(tmp_path))
        return state.comm.residual_bytes()

    saved = ranks.run(2, body, False)
    assert saved[0] > 0 and ranks.run(2, body, True) == saved


def test_no_sync_accumulates_without_the_hook():
    def body(rank):
        begin()
        network = wrapped(model())
        state = onebit.torch.HookState(warmup_calls=1)
        network.register_comm_hook(state, onebit.torch.ddp_hook)
        with network.no_sync():
            loss_of(network, rank, 1).backward()
        quiet = state.comm.stats()["exact_calls"]
        loss_of(network, rank, 2).backward()
        return quiet, state.comm.stats()["exact_calls"]

    assert ranks.run(2, body) == [(0, 1)] * 2


def test_a_rank_that_dies_in_backward_is_named_by_the_hook():
    def body(rank):
        begin()
        network = wrapped(model(), broadcast_buffers=False)
        state = onebit.torch.HookState(warmup_calls=1)
        network.register_comm_hook(state, onebit.torch.ddp_hook)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        train(network, optimizer, rank, 3)
        if rank == 1:
            os._exit(1)
        try:
            train(network, optimizer, rank, 100)
        except Exception as error:
            return str(error)
        return "nothing"

    assert "rank 1" in ranks.run(2, body, dead=[1])[0]


def test_a_state_that_goes_without_close_leaves_no_thread_and_no_connection():
    def body(rank):
        begin()

        def held():
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        def use():
            network = wrapped(model())
            network.register_comm_hook(onebit.torch.HookState(name="short", warmup_calls=1), onebit.torch.ddp_hook)
            loss_of(network, rank, 1).backward()

        def left(before):
            gc.collect()
            end = time.monotonic() + 20
            while any(now > then for now, then in zip(held(), before)) and time.monotonic() < end:
                time.sleep(0.01)
            return held()

        use()  # what is made once
        first = held()  # of one state at most
        for _ in range(3):
            use()
        return first, left(first)

    for first, last in ranks.run(2, body):
        assert last[0] <= first[0] and last[1] <= first[1]


def test_warm_up_calls_begin_at_1():
    assert "from 1" in ranks.run(1, lambda rank: ranks.error_of(lambda: onebit.torch.HookState(warmup_calls=0)))[0]


# ---- the optimizers beside DDP ----


@pytest.mark.parametrize("views", [False, True])
def test_an_optimizer_of_ours_trains_in_ddp_as_it_does_without(views):
    def body(rank, ddp):
        if ddp:
            begin()
        network = model()
        trained = wrapped(network, gradient_as_bucket_view=views) if ddp else network
        optimizer = onebit.torch.OneBitAdam(network.parameters(), lr=1e-2, freeze_step=5)
        train(trained, optimizer, rank, 12)
        return flat(network)

    assert ranks.run(2, body, True) == ranks.run(2, body, False)


def test_a_model_wrapped_after_its_optimizer_is_an_error_or_kept_local_by_hand():
    def body(rank, by_hand):
        begin()
        network = model()
        optimizer = onebit.torch.OneBitAdam(network.parameters(), lr=1e-2, freeze_step=5)
        ddp = wrapped(network)
        if by_hand:
            onebit.torch.keep_gradients_local(ddp)
            train(ddp, optimizer, rank, 3)
            return optimizer.info().steps
        return ranks.error_of(lambda: train(ddp, optimizer, rank, 1))

    assert ranks.run(2, body, True) == [3, 3]
    for said in ranks.run(2, body, False):
        assert "after its optimizer was made" in said and "keep_gradients_local" in said


def test_the_model_of_a_group_that_is_added_later_keeps_its_gradients_local():
    def body(rank):
        begin()
        first, second = wrapped(model()), wrapped(model(width=8))
        optimizer = onebit.torch.OneBitAdam(first.parameters(), lr=1e-2, freeze_step=5)
        optimizer.add_param_group({"params": list(second.parameters())})
        for step in range(1, 4):
            optimizer.zero_grad()
            (loss_of(first, rank, step) + loss_of(second, rank, step)).backward()
            optimizer.step()
        return flat(second)

    first, second = ranks.run(2, body)
    assert first == second


def test_another_optimizer_of_the_same_model_is_warned_of():
    def body(rank):
        begin()
        network = wrapped(model())
        parameters = list(network.parameters())
        other = torch.optim.SGD(parameters[2:], lr=0.1)
        optimizer = onebit.torch.OneBitAdam(parameters[:2])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(network, optimizer, rank, 2)
        return type(other).__name__, [str(each.message) for each in caught]

    name, (said,) = ranks.run(2, body)[0]
    assert name in said and "no longer averaged" in said


def test_a_model_with_a_hook_of_its_own_is_refused():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def body(rank):
        begin()
        network = wrapped(model())
        network.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return ranks.error_of(lambda: onebit.torch.OneBitAdam(network.parameters()))

    assert "Register no communication hook" in ranks.run(2, body)[0]


def loopback_bytes():
    """All bytes that the ranks of this network namespace have sent, whoever sent them."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def count_bytes(rank):
    """Bytes on the loopback device in 10 compressed steps in DDP, and what onebit says that it sent."""
    begin()
    network = wrapped(large(), broadcast_buffers=False)
    optimizer = onebit.torch.OneBitLamb(network.parameters(), lr=1e-3, freeze_step=2)
    train(network, optimizer, rank, 5)
    comm = optimizer.comm
    comm.barrier()
    before, sent = loopback_bytes(), comm.stats()["wire_bytes_sent"]
    comm.barrier()
    train(network, optimizer, rank, 15, 6)
    comm.barrier()
    after, sent_after = loopback_bytes(), comm.stats()["wire_bytes_sent"]
    comm.barrier()
    elements = sum(each.numel() for each in network.parameters())
    return after - before, sent_after - sent, elements


def test_in_the_compressed_stage_nothing_but_the_bits_goes_over_the_wire():
    # A network of the test's own, in which nobody else's bytes count.
    if subprocess.run(["unshare", "--net", "--mount", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("a network namespace needs root and util-linux")
    script = (
        "import pickle, sys, subprocess; subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True); "
        "sys.path.insert(0, %r); import ranks, test_ddp_hook as t; "
        "sys.stdout.buffer.write(pickle.dumps(ranks.run(2, t.count_bytes)))" % str(Path(__file__).parent)
    )
    # /sys shows the namespace of whoever mounted it.
    shell = 'mount -t sysfs none /sys && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", shell, sys.executable, script], stdout=subprocess.PIPE, check=True
    )
    (total, _, elements), _ = results = pickle.loads(done.stdout)
    onebits = sum(each[1] for each in results)
    steps, full = 10, 2 * 4 * elements  # what two ranks send for an exact allreduce
    assert onebits < steps * full / 20
    # Headers of TCP and IP and acknowledgements come on top, a DDP that reduces would add `full` a step.
    assert onebits < total < 1.5 * onebits + 10_000 * steps < steps * full / 4
