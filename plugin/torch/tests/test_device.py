"""Optimizers in a GPU's memory by ctypes, over an NCCL communicator that the package makes: on the stand-ins for CUDA and NCCL."""

from __future__ import annotations

import array
import ctypes
import math
import os

import pytest

import onebit
import ranks
from onebit import nccl
from onebit.optimizer import NativeOptimizer, Place, TensorSpec, parse_section

COUNT = 5003


def cudart():
    return ctypes.CDLL(os.environ["ONEBIT_TEST_CUDART"])


class DeviceFloats:
    def __init__(self, count):
        self._cudart = cudart()
        address = ctypes.c_void_p()
        assert self._cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(4 * count)) == 0
        self.address, self._bytes = address.value, 4 * count

    def write(self, values):
        self._copy(self.address, values.buffer_info()[0], 1)

    def read(self):
        values = array.array("f", bytes(self._bytes))
        self._copy(values.buffer_info()[0], self.address, 2)
        return values

    def _copy(self, to, source, kind):
        arguments = (ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(self._bytes), kind)
        assert self._cudart.cudaMemcpy(*arguments) == 0


def gradient(rank, step):
    return array.array("f", (math.sin(i * 0.37 + step) + 0.3 * math.cos(i * (rank + 2) + step) for i in range(COUNT)))


class Twins:
    """An optimizer in host memory and one in a device's, of the same tensor."""

    def __init__(self, comm, kind, name="w"):
        self.comm = comm
        self.host = array.array("f", (math.cos(i) for i in range(COUNT)))
        self.device, self.device_gradient = DeviceFloats(COUNT), DeviceFloats(COUNT)
        self.device.write(self.host)
        config = parse_section({"type": kind, "params": {"lr": 1e-2, **({} if kind == "Adam" else {"freeze_step": 4})}})
        self.nccl = nccl.NcclCommunicator(comm) if comm.size > 1 else None
        make = lambda address, place: NativeOptimizer(  # noqa: E731
            config, name, [config.group], [TensorSpec("w", address, COUNT, onebit.DataType.FLOAT32, 0)], comm, place
        )
        self.on_host = make(self.host.buffer_info()[0], None)
        self.on_device = make(self.device.address, Place(self.nccl, 0))

    def step(self, number):
        own = gradient(self.comm.rank, number)
        self.device_gradient.write(own)
        assert self.on_host.step([own.buffer_info()[0]], [1e-2])
        assert self.on_device.step([self.device_gradient.address], [1e-2])
        assert self.device.read() == self.host, f"step {number}"


def on_own_device(body):
    def run(rank, *arguments):
        assert cudart().cudaSetDevice(rank) == 0
        return body(rank, *arguments)

    return run


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["OneBitLamb", "OneBitAdam", "Adam"])
def test_steps_are_those_of_the_host(kind, size):
    @on_own_device
    def body(rank):
        with onebit.init() as comm:
            twins = Twins(comm, kind)
            for step in range(1, 9):
                twins.step(step)
            assert twins.on_device.info()[:4] == twins.on_host.info()[:4]
            state = [array.array("f", bytes(4 * COUNT)) for _ in range(2)]
            for native, values in zip((twins.on_host, twins.on_device), state):
                native.read_state(0, "exp_avg", values.buffer_info()[0], COUNT)
            assert state[0] == state[1]
            return bytes(twins.host)

    results = ranks.run(size, body)
    assert all(each == results[0] for each in results)


def test_a_state_goes_from_the_device_to_the_host_and_back(tmp_path):
    @on_own_device
    def body(rank):
        comm = onebit.init()
        first = Twins(comm, "OneBitLamb")
        for step in range(1, 7):
            first.step(step)
        first.on_device.save(f"{tmp_path}/device")
        first.on_host.save(f"{tmp_path}/host")
        comm.barrier()
        second = Twins(comm, "OneBitLamb")
        second.on_host.load(f"{tmp_path}/device")
        second.on_device.load(f"{tmp_path}/host")
        for step in range(7, 10):
            first.step(step)
            second.step(step)
            assert first.host == second.host
        comm.close()  # and all that was made over it

    ranks.run(2, body)


def test_memory_of_the_other_kind_is_refused_on_all_ranks():
    @on_own_device
    def body(rank):
        with onebit.init() as comm:
            config = parse_section({"type": "Adam", "params": {}})
            host, device = array.array("f", bytes(40)), DeviceFloats(10)
            address = host.buffer_info()[0] if rank == 1 else device.address
            specs = [TensorSpec("w", address, 10, onebit.DataType.FLOAT32, 0)]
            place = Place(nccl.NcclCommunicator(comm), 0)
            return ranks.error_of(lambda: NativeOptimizer(config, "o", [config.group], specs, comm, place))

    said = ranks.run(2, body)
    assert "tensor 'w': its parameters: the memory at" in said[1] and "is the host's" in said[1]
    assert "rank 1 cannot make its optimizer" in said[0]


def test_a_rank_without_nccl_is_named_to_all():
    def body(rank):
        if rank == 1:
            os.environ["ONEBIT_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
        with onebit.init() as comm:
            said = ranks.error_of(lambda: nccl.NcclCommunicator(comm))
            comm.barrier()  # it can be used on
            return said

    said = ranks.run(3, body)
    assert "/nowhere/libnccl.so.2" in said[1] and "ONEBIT_NCCL_LIBRARY" in said[1]
    for rank in (0, 2):
        assert "rank 1 cannot load NCCL" in said[rank]


def test_after_an_abort_the_state_can_still_be_saved(tmp_path):
    @on_own_device
    def body(rank):
        with onebit.init() as comm:
            twins = Twins(comm, "OneBitAdam")
            for step in range(1, 7):
                twins.step(step)
            twins.nccl.abort("a rank is lost")
            twins.on_device.save(str(tmp_path))
            said = ranks.error_of(lambda: twins.on_device.step([None], [1e-2]))
            assert "NCCL communicator was aborted after a failure: a rank is lost" in said
            comm.barrier()
            other = Twins(comm, "OneBitAdam")
            other.on_device.load(str(tmp_path))
            assert other.device.read() == twins.host

    ranks.run(2, body)


def test_the_library_that_is_named_or_loaded_is_taken(monkeypatch):
    named = os.environ["ONEBIT_NCCL_LIBRARY"]
    assert nccl.library_path() == named

    def body(rank):
        del os.environ["ONEBIT_NCCL_LIBRARY"]
        assert nccl.library_path() == "libnccl.so.2"
        ctypes.CDLL(named)
        return os.path.realpath(nccl.library_path()) == os.path.realpath(named)

    assert ranks.run(1, body) == [True]
