"""Optimizers and the hook on CUDA tensors, as far as that can be seen without a GPU: on the stand-ins (stand_in_cuda.py)."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

import onebit.torch
import ranks
import stand_in_cuda as cuda
import models
from models import model, train

torch.set_num_threads(1)
warnings.simplefilter("ignore")

ALL = ["OneBitLamb", "OneBitAdam", "ZeroOneAdam", "Lamb", "Adam"]
FREEZE = {"OneBitLamb": {"freeze_step": 4}, "OneBitAdam": {"freeze_step": 4}, "ZeroOneAdam": {"var_freeze_step": 4}}


def on_device(body):
    """A rank whose "cuda" is the stand-in's device of its number."""

    def run(rank, *arguments):
        cuda.install()
        torch.cuda.set_device(rank)
        return body(rank, *arguments)

    return run


def make(kind, network, **arguments):
    return getattr(onebit.torch, kind)(network.named_parameters(), lr=1e-2, **FREEZE.get(kind, {}), **arguments)


def flat(network):
    cuda.settle()
    return models.flat(network)


class Twins:
    """The same model in host memory and on the device, an optimizer of each."""

    def __init__(self, kind="OneBitLamb", dtype=torch.float32, **arguments):
        self.dtype = dtype
        self.host, self.device = model(dtype=dtype), model(dtype=dtype).to("cuda")
        self.on_host = make(kind, self.host, name="host", **arguments)
        self.on_device = make(kind, self.device, name="device", **arguments)

    def backward(self, rank, step):
        for network in (self.host, self.device):
            network.zero_grad()
            inputs, targets = models.batch(rank, step, dtype=self.dtype)
            torch.nn.functional.mse_loss(network(inputs).float(), targets.float()).backward()

    def step(self, rank, step):
        self.backward(rank, step)
        self.on_host.step()
        self.on_device.step()
        assert flat(self.host) == flat(self.device), f"step {step}"


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ALL)
def test_steps_are_those_of_the_host(kind, size):
    @on_device
    def body(rank):
        twins = Twins(kind)
        for step in range(1, 13):
            twins.step(rank, step)
        assert twins.on_device.info()[:4] == twins.on_host.info()[:4]
        assert twins.on_device.carrier() == "nccl" and twins.on_host.carrier() == "onebit"
        weight = next(twins.device.parameters())
        mine = twins.on_device.read_state(weight, "exp_avg")
        assert mine.tolist() == twins.on_host.read_state(next(twins.host.parameters()), "exp_avg").tolist()

    ranks.run(size, body)


def test_16_bit_parameters_step_as_the_hosts():
    @on_device
    def body(rank):
        twins = Twins(dtype=torch.bfloat16)
        for step in range(1, 9):
            twins.step(rank, step)

    ranks.run(2, body)


def test_a_step_under_another_stream_waits_for_it_and_it_for_the_step():
    @on_device
    def body(rank):
        twins = Twins("ZeroOneAdam", local_step_scaler=2)  # with steps that wait for nobody
        for step in range(1, 4):
            twins.step(rank, step)
        other = torch.cuda.Stream()
        own = twins.on_device._bound.stream.stream
        for step in range(4, 20):
            twins.backward(rank, step)
            twins.on_host.step()
            late = []
            for parameter in twins.device.parameters():
                late.append((parameter.grad, parameter.grad.clone()))
                parameter.grad.fill_(float("inf"))  # what a step sees that does not wait
                cuda.write_later(*late[-1], on=other)
            cuda.recorded.clear()
            with torch.cuda.stream(other):
                twins.on_device.step()
            assert [each.data_ptr() for each, _ in late] == [address for address, _ in cuda.recorded]
            assert all(to == own.cuda_stream for _, to in cuda.recorded)
            assert not twins.on_device.step_was_skipped
            other.synchronize()
            assert flat(twins.host) == flat(twins.device), f"step {step}"
        assert own != other

    ranks.run(2, body, CUDA_CPU_DELAY_US="1000")


@pytest.mark.parametrize("way", ["save", "state_dict"])
def test_a_state_holds_what_the_current_stream_has_still_to_write(way, tmp_path):
    @on_device
    def body(rank):
        twins = Twins("OneBitAdam")
        twins.step(rank, 1)
        other = torch.cuda.Stream()
        due = {name: torch.full_like(each, 7.0) for name, each in twins.device.named_parameters()}
        wrong = {name: torch.full_like(each, 6.0) for name, each in due.items()}
        for values in [wrong] * 40 + [due]:
            for name, each in twins.device.named_parameters():
                cuda.write_later(each, values[name], on=other)
        with torch.cuda.stream(other):
            if way == "save":
                twins.on_device.save(tmp_path)
            else:
                state = twins.on_device.state_dict()
        reader = model()
        optimizer = make("OneBitAdam", reader, name="device")
        if way == "save":
            optimizer.comm.barrier()
            optimizer.load(tmp_path)
        else:
            optimizer.load_state_dict(state)
        return set(flat(reader))

    assert ranks.run(2, body, CUDA_CPU_DELAY_US="2000") == [{7.0}] * 2


def test_the_scale_of_a_grad_scaler_is_taken_out_and_an_infinite_gradient_of_one_rank_skips_all():
    @on_device
    def body(rank):
        twins = Twins("OneBitLamb")
        for step in range(1, 9):
            twins.backward(rank, step)
            scale = 2.0 ** (8 + rank)  # each rank has one of its own
            for network, optimizer in ((twins.host, twins.on_host), (twins.device, twins.on_device)):
                for each in network.parameters():
                    each.grad.mul_(scale)
                if step == 5 and rank == 1:
                    next(network.parameters()).grad[0, 0] = float("inf")
                optimizer.grad_scale = torch.tensor(scale)  # as GradScaler.step does
                optimizer.step()
                assert optimizer.step_was_skipped == (step == 5)
            assert flat(twins.host) == flat(twins.device)

    ranks.run(2, body)


def test_a_step_inside_a_cuda_graph_is_refused_and_none_is_lost():
    @on_device
    def body(rank):
        twins = Twins("Adam")
        twins.step(rank, 1)
        twins.backward(rank, 2)
        with cuda.capturing():
            said = ranks.error_of(twins.on_device.step)
        twins.step(rank, 2)
        return said

    for said in ranks.run(2, body):
        assert "no CUDA graph can hold" in said


def test_memory_that_pytorch_keeps_for_later_is_given_back_before_the_state_is_made():
    @on_device
    def body(rank):
        twins = Twins("Adam")
        for step in range(1, 4):
            twins.step(rank, step)
        return cuda.calls

    assert ranks.run(1, body) == [["empty_cache"]]


@pytest.mark.parametrize("way", ["directory", "state_dict"])
def test_a_state_goes_from_the_device_to_the_host_and_back(way, tmp_path):
    @on_device
    def body(rank):
        network = model().to("cuda")
        optimizer = make("OneBitLamb", network)
        train(network, optimizer, rank, 6)
        moved = [model(), model().to("cuda")]
        for number, each in enumerate(moved):
            other = make("OneBitLamb", each)
            if way == "state_dict":
                other.load_state_dict(optimizer.state_dict())
            else:
                optimizer.save(tmp_path / str(number))
                optimizer.comm.barrier()
                other.load(tmp_path / str(number))
            assert flat(each) == flat(network)
            train(network, optimizer, rank, 8 + 2 * number, 7 + 2 * number)
            train(each, other, rank, 8 + 2 * number, 7 + 2 * number)
            assert flat(each) == flat(network)

    ranks.run(2, body)


def test_bytes_are_counted_as_the_hosts_are_and_said_to_be_computed():
    @on_device
    def body(rank):
        twins = Twins("OneBitAdam")
        for step in range(1, 13):
            twins.step(rank, step)
        report = onebit.torch.report()
        device, host = report.as_dict()["optimizers"]
        elements = sum(each.numel() for each in twins.host.parameters())
        return device, host, str(report), elements

    for device, host, text, elements in ranks.run(2, body):
        assert device["full_bytes"] == 4 * (4 * elements + 32)
        assert 0 < device["compressed_bytes"] < host["compressed_bytes"]
        assert device["fp32_bytes"] == host["fp32_bytes"] == 12 * 4 * elements
        assert device["ratio"] == 12 * 4 * elements / (device["full_bytes"] + device["compressed_bytes"])
        assert "over NCCL (computed)" in text and "over communicator 'world'" in text


def test_bytes_go_on_after_a_load():
    @on_device
    def body(rank):
        twins = Twins("Adam")
        twins.step(rank, 1)
        before = twins.on_device.info().full_bytes
        twins.on_device.load_state_dict(twins.on_device.state_dict())
        assert twins.on_device.info().full_bytes == before
        twins.step(rank, 2)
        assert twins.on_device.info().full_bytes == 2 * before

    ranks.run(2, body)


def test_a_rank_without_the_cuda_library_is_named_to_all_at_once():
    @on_device
    def body(rank):
        if rank == 1:
            os.environ["ONEBIT_CUDA_LIBRARY"] = "/nowhere/libonebit-cuda.so"
        network = model().to("cuda")
        return ranks.error_of(make("Adam", network).step)

    said = ranks.run(3, body, ONEBIT_TIMEOUT="600")
    assert "/nowhere/libonebit-cuda.so" in said[1]
    for rank in (0, 2):
        assert "rank 1 cannot have an optimizer on its CUDA device" in said[rank]


def test_cuda_tensors_without_nccl_are_an_error_that_says_what_to_set():
    @on_device
    def body(rank):
        os.environ["ONEBIT_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
        network = model().to("cuda")
        return ranks.error_of(make("Adam", network).step)

    for said in ranks.run(2, body):
        assert "/nowhere/libnccl.so.2 is no NCCL that can be loaded" in said and "ONEBIT_NCCL_LIBRARY" in said


def test_a_killed_rank_leaves_states_to_save_and_no_stream_that_waits_for_good(tmp_path):
    @on_device
    def dying(rank):
        first, second = model().to("cuda"), model().to("cuda")
        optimizers = [make("OneBitLamb", first), make("OneBitLamb", second, name="second")]
        train(first, optimizers[0], rank, 6)
        train(second, optimizers[1], rank, 6)
        if rank == 1:
            os._exit(1)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            said = [ranks.error_of(lambda: train(first, optimizers[0], rank, 1000))]
        other.synchronize()
        torch.cuda.synchronize()
        for each in optimizers:
            each.save(tmp_path)
        train_again = lambda: train(second, optimizers[1], rank, 7, 7)  # noqa: E731
        return said + [ranks.error_of(train_again)]

    @on_device
    def going_on(rank):
        steps = []
        for name in ("optimizer", "second"):
            network = model().to("cuda")
            optimizer = make("OneBitLamb", network, name=name)
            if name == "second":  # whose save could not know that a rank was lost
                return steps + [ranks.error_of(lambda: optimizer.load(tmp_path))]
            optimizer.load(tmp_path)
            steps.append(optimizer.info().steps)
            train(network, optimizer, rank, 2)

    said = ranks.run(2, dying, dead=[1], ONEBIT_TIMEOUT="5")[0]
    assert "rank 0" in said[0]
    assert "was aborted after a failure" in said[1]
    for found in ranks.run(2, going_on):
        assert found[0] >= 6
        assert "no file of rank 1" in found[1]


class Bucket:
    def __init__(self, buffer, index=0):
        self._buffer, self._index = buffer, index

    def buffer(self):
        return self._buffer

    def index(self):
        return self._index

    def parameters(self):
        return []


def test_the_hook_averages_buckets_of_the_device_behind_the_stream_that_fills_them():
    @on_device
    def body(rank):
        state = onebit.torch.HookState(warmup_calls=2)
        other = torch.cuda.Stream()
        count = 3000
        sums = torch.zeros(count)
        for call in range(1, 41):
            for index, size in enumerate((count, count // 2)):
                bucket = cuda.tensor_like(torch.full((size,), float("nan")))
                own = torch.full((size,), 1.0 + rank + index) + torch.linspace(0, 1, size)
                cuda.write_later(bucket, own, on=other)
                with torch.cuda.stream(other):
                    done = onebit.torch.ddp_hook(state, Bucket(bucket, index))
                done.wait()
                torch.cuda.synchronize()
                due = own - rank + 0.5
                if call <= 2:
                    assert torch.allclose(bucket, due)
                if index == 0:
                    sums += bucket - due
        assert state.decisions["ddp.bucket1"].startswith("1bit")
        state.close()
        return float(sums.abs().max())

    # Error compensation: what one call loses the next ones give back.
    assert all(left < 8 for left in ranks.run(2, body, CUDA_CPU_DELAY_US="500"))


def test_a_bucket_that_cannot_be_averaged_is_an_error_of_its_future():
    @on_device
    def body(rank):
        state = onebit.torch.HookState()
        state.comm.abort()
        done = onebit.torch.ddp_hook(state, Bucket(cuda.tensor_like(torch.ones(5))))
        return ranks.error_of(done.wait)

    assert all("abort" in said for said in ranks.run(1, body))
