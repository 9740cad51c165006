"""Communicators over process groups, and tensors on them."""

from __future__ import annotations

import datetime

import pytest
import torch
import torch.distributed as dist

import onebit
import onebit.torch
import ranks
from models import flat, model, train

torch.set_num_threads(1)


def begin():
    dist.init_process_group("gloo")


def test_the_store_of_the_process_group_connects_ranks():
    def body(rank):
        begin()
        comm = onebit.torch.init(name="mine")
        again = onebit.torch.init(name="mine")
        values = torch.full((10,), float(rank))
        return comm.rank, comm.size, comm.allreduce(values).tolist(), again.allreduce(torch.ones(1)).item()

    assert ranks.run(3, body) == [(rank, 3, [3.0] * 10, 3.0) for rank in range(3)]


def test_a_part_of_the_ranks_trains_by_itself():
    def body(rank):
        begin()
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        mine = groups[rank % 2]
        other = groups[1 - rank % 2]
        refused = ranks.error_of(lambda: onebit.torch.init(other))
        comm = onebit.torch.init(mine, name=f"part {rank % 2}")
        network = model()
        optimizer = onebit.torch.OneBitLamb(network.parameters(), lr=1e-2, freeze_step=3, comm=comm)
        train(network, optimizer, rank, 8)
        return comm.rank, comm.size, refused, flat(network)

    results = ranks.run(4, body)
    assert [each[:2] for each in results] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert all("is not of the group" in each[2] for each in results)
    assert results[0][3] == results[2][3] != results[1][3] == results[3][3]


def test_ranks_that_torchrun_starts_anew_do_not_find_the_id_of_dead_ones():
    def body(rank):
        begin()
        store = dist.distributed_c10d._get_default_store()
        comm = onebit.torch.init(name="mine")
        comm.barrier()  # the first rank is out of init
        return "not in the store" if is_absent(store, "onebit/mine/0,1/1") else "found"

    def is_absent(store, key):
        try:
            store.wait([key], datetime.timedelta(milliseconds=1))
        except Exception:  # of the stores' own types
            return True
        return False

    assert ranks.run(2, body) == ["not in the store"] * 2


def test_parameters_are_broadcast_but_not_what_else_a_state_holds():
    class WithExtra(torch.nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    def body(rank):
        torch.manual_seed(rank)
        network = torch.nn.Sequential(WithExtra(3, 2), torch.nn.BatchNorm1d(2))
        onebit.torch.broadcast_parameters(network, root=1)
        return flat(network)

    first, second = ranks.run(2, body)
    assert first == second


def test_a_first_rank_that_does_not_come_is_a_timeout_that_names_it():
    def body(rank):
        begin()
        said = ranks.error_of(lambda: onebit.torch.init(name="lonely", timeout=0.5)) if rank == 1 else ""
        dist.barrier()
        return said

    said = ranks.run(2, body)[1]
    assert "rank 0" in said and "'lonely'" in said and "timeout" in said


def test_a_first_rank_that_cannot_begin_says_why_to_the_others():
    def body(rank):
        begin()
        said = ranks.error_of(onebit.torch.init)
        dist.barrier()  # the store, which tells the others, is the first rank's
        return said

    first, second = ranks.run(2, body, ONEBIT_PORT_RANGE="nonsense")
    assert "ONEBIT_PORT_RANGE" in first
    assert "rank 0 could not begin" in second and "ONEBIT_PORT_RANGE" in second


def test_without_launcher_or_process_group_it_is_said_how_to_start():
    def body(rank):
        import os

        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name)
        return ranks.error_of(lambda: onebit.torch.Adam([torch.nn.Parameter(torch.ones(1))]))

    assert "torchrun" in ranks.run(1, body)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64])
def test_tensors_of_all_types_are_summed(dtype):
    def body(rank):
        comm = onebit.torch.init()
        values = torch.arange(12, dtype=dtype).reshape(3, 4) + rank
        tagged = comm.allreduce(torch.full((4096,), 2.0, dtype=dtype), tag="t") if dtype.is_floating_point else values
        out = torch.empty(2, 3, 4, dtype=dtype)
        comm.allgather(values, out)
        return comm.allreduce(values).tolist(), out.tolist(), tagged.float().mean().item()

    due = (2 * torch.arange(12).reshape(3, 4) + 1).tolist()
    for total, gathered, tagged in ranks.run(2, body):
        assert total == due
        assert gathered[1][0][0] == 1
        assert not dtype.is_floating_point or tagged == pytest.approx(4.0)


def test_tensors_that_cannot_be_sent_are_refused_with_what_to_do():
    def body(rank):
        comm = onebit.torch.init()
        return [
            ranks.error_of(lambda: comm.allreduce(torch.ones(4, 4).t()[1:, 1:])),
            ranks.error_of(lambda: comm.allreduce(torch.eye(3).to_sparse())),
            ranks.error_of(lambda: comm.allreduce(torch.ones(3, dtype=torch.complex64))),
            ranks.error_of(lambda: comm.allreduce(torch.ones(3, dtype=torch.bool))),
            ranks.error_of(lambda: comm.allreduce(torch.ones(3, device="meta"))),
        ]

    for words, said in zip([".contiguous()", ".to_dense()", "complex64", "bool", "meta"], ranks.run(1, body)[0]):
        assert words in said
