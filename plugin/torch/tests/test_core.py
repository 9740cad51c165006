"""The core binding, which needs no PyTorch: buffers of Python's own."""

from __future__ import annotations

import array
import threading
import time

import pytest

import onebit
import ranks


def floats(count, value):
    return array.array("f", [value] * count)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_an_untagged_allreduce_is_the_exact_sum(size):
    def body(rank):
        comm = onebit.init()
        assert (comm.rank, comm.size) == (rank, size)
        found = {}
        for letter in "fdilq":
            values = array.array(letter, [rank + 1, 10 * rank, 0])
            comm.allreduce(values)
            found[letter] = list(values)
        found["empty"] = list(comm.allreduce(array.array("f")))
        return found

    total = sum(range(1, size + 1))
    for found in ranks.run(size, body):
        assert found.pop("empty") == []
        assert all(each == [total, 10 * (total - size), 0] for each in found.values())


def test_the_mean_goes_into_another_buffer_and_leaves_the_source():
    def body(rank):
        values, out = floats(5, rank), floats(5, -1)
        assert onebit.init().allreduce(values, onebit.AVG, out=out) is out
        return list(values), list(out)

    assert ranks.run(2, body) == [([0.0] * 5, [0.5] * 5), ([1.0] * 5, [0.5] * 5)]


def test_a_tag_compresses_and_gives_back_what_a_call_loses():
    def body(rank):
        comm = onebit.init()
        pattern = [(1.0 if i % 3 else -2.0) * (1 + i % 7) for i in range(4096)]
        total = [0.0] * len(pattern)
        for _ in range(50):
            values = array.array("f", pattern)
            comm.allreduce(values, onebit.AVG, tag="layer")
            total = [a + b for a, b in zip(total, values)]
        error = sum((a / 50 - b) ** 2 for a, b in zip(total, pattern)) ** 0.5
        return comm.stats(), comm.residual_bytes("layer"), error / sum(b * b for b in pattern) ** 0.5, total

    first, second = ranks.run(2, body)
    stats, residual, error, total = first
    assert total == second[3]
    assert stats["compressed_calls"] == 50 and stats["exact_calls"] == 0
    assert residual == stats["residual_bytes"] == 4096 * 4 + 2048 * 4
    assert stats["wire_bytes_sent"] < stats["reduced_bytes"] / 16
    assert error < 0.06


def test_broadcast_allgather_and_barrier_reach_all_ranks():
    def body(rank):
        comm = onebit.init()
        values = array.array("B", [rank] * 3)
        comm.broadcast(values, root=2)
        gathered = array.array("i", [0] * 6)
        comm.allgather(array.array("i", [rank, -rank]), gathered)
        comm.barrier()
        return list(values), list(gathered)

    assert ranks.run(3, body) == [([2, 2, 2], [0, 0, 1, -1, 2, -2])] * 3


def test_a_unique_id_connects_ranks_without_a_launcher(tmp_path):
    def body(rank):
        path = tmp_path / "id"
        if rank == 0:
            unfinished = tmp_path / "unfinished"
            unfinished.write_bytes(onebit.unique_id())
            unfinished.rename(path)
        while not path.exists():
            time.sleep(0.01)
        comm = onebit.Communicator.from_unique_id(path.read_bytes(), rank, 2, name="mine")
        return list(comm.allreduce(floats(1, 1)))

    assert ranks.run(2, body) == [[2.0], [2.0]]


def test_residuals_are_saved_and_loaded_by_another_number_of_ranks(tmp_path):
    def save(rank):
        comm = onebit.init()
        comm.allreduce(array.array("f", range(1000)), tag="t")
        comm.save_residuals(tmp_path)
        return comm.residual_bytes()

    def load(rank):
        comm = onebit.init()
        comm.load_residuals(tmp_path)
        held = comm.residual_bytes("t")
        comm.reset_residuals("t")
        return held, comm.residual_bytes()

    ranks.run(2, save)
    assert ranks.run(1, load) == [(8000, 0)]
    (tmp_path / "world.rank-0-of-2.residuals").write_bytes(b"garbage")
    assert ranks.run(1, refused, tmp_path) == [("DATA_ERROR", True)]


def refused(rank, directory):
    with pytest.raises(onebit.OneBitError) as caught:
        onebit.init().load_residuals(str(directory))
    return caught.value.code.name, str(directory) in caught.value.message


def test_scopes_and_ranges_give_tags_and_explain_says_why():
    def body(rank):
        comm = onebit.init(settings={"ONEBIT_MIN_SIZE": 1024})
        values, small = floats(1024, 1), floats(10, 1)
        plain = comm.explain(values)
        with onebit.scope("in scope"):
            scoped = comm.explain(values)
            tiny = comm.explain(small)
        onebit.tag_buffer(values, "mine")
        ranged = comm.explain(values)
        onebit.untag_buffer(values)
        return plain, scoped, tiny, ranged, comm.explain(values)

    plain, scoped, tiny, ranged, after = ranks.run(2, body)[0]
    assert plain == after == "exact: not tagged"
    assert scoped.startswith("1bit") and ranged.startswith("1bit")
    assert "ONEBIT_MIN_SIZE=1024" in tiny


def test_errors_carry_code_and_message_and_leave_the_communicator_usable():
    def body(rank):
        comm = onebit.init()
        for bad, words in [
            (lambda: comm.allreduce(array.array("B", [1])), "onebitUint8"),
            (lambda: comm.allreduce(array.array("H", [1])), "format 'H'"),
            (lambda: comm.allreduce(b"1234"), "writable"),
            (lambda: comm.allreduce(3), "int is neither a tensor"),
            (lambda: comm.allreduce(array.array("i", [1]), onebit.AVG), "floating types"),
            (lambda: comm.allreduce(floats(2, 1), out=floats(3, 1)), "out has 3 x float32"),
            (lambda: comm.allreduce(floats(2, 1), tag="x" * 256), "255 bytes"),
            (lambda: comm.allreduce(floats(2, 1), tag="a\0b"), "a NUL in it"),
            (lambda: comm.save_residuals("/tmp\0x"), "a NUL in it"),
            (lambda: comm.broadcast(floats(2, 1), root=1), "root 1"),
            (lambda: comm.allgather(floats(2, 1), floats(3, 1)), "out has 3"),
        ]:
            with pytest.raises(onebit.OneBitError, match=words) as caught:
                bad()
            assert caught.value.code == onebit.Code.INVALID_ARGUMENT
        comm.barrier()
        assert comm.failure() is None
        comm.close()
        with pytest.raises(onebit.OneBitError, match="'world' is closed"):
            comm.barrier()
        comm.close()

    ranks.run(1, body)


def test_a_setting_that_cannot_be_parsed_is_named():
    message = ranks.run(1, lambda rank: ranks.error_of(lambda: onebit.init(settings={"ONEBIT_BLOCK": "12"})))[0]
    assert "ONEBIT_BLOCK" in message and "12" in message
    assert onebit.settings()["ONEBIT_BLOCK"] == "2048"


def test_a_dead_rank_is_named_to_the_others():
    def body(rank):
        comm = onebit.init()
        comm.barrier()
        if rank == 1:
            import os

            os._exit(9)
        with pytest.raises(onebit.OneBitError, match="rank 1") as caught:
            for _ in range(1000):
                comm.allreduce(floats(1000, 1))
        assert caught.value.code == comm.failure() == onebit.Code.REMOTE_ERROR

    ranks.run(3, body, dead=[1])


def test_a_reduction_may_be_named_and_another_is_refused():
    def body(rank):
        comm = onebit.init()
        values = floats(1, 2.0)
        assert comm.allreduce(values, "sum")[0] == 4.0
        assert comm.allreduce(values, "avg")[0] == 4.0
        assert comm.allreduce(values, onebit.SUM)[0] == 8.0
        return [ranks.error_of(lambda op=op: comm.allreduce(values, op)) for op in ("max", 17, None)]

    for errors in ranks.run(2, body):
        assert all("op is" in error for error in errors)


def test_abort_from_another_thread_ends_a_waiting_call(tmp_path):
    def body(rank):
        comm = onebit.init()
        comm.barrier()
        aborted = tmp_path / "aborted"
        if rank == 1:
            while not aborted.exists():
                time.sleep(0.01)
            # The first may still find all that it needs: rank 0 may have come to it before it aborted.
            return ranks.error_of(lambda: [comm.barrier() for _ in range(2)])
        errors = []
        waiting = threading.Thread(target=lambda: errors.append(ranks.error_of(comm.barrier)))
        waiting.start()
        comm.abort()
        waiting.join()
        aborted.touch()
        return errors[0]

    first, second = ranks.run(2, body)
    assert "aborted" in first and "rank 0" in second


def test_a_waiting_call_does_not_hold_pythons_lock():
    def body(rank):
        comm = onebit.init()
        if rank == 1:
            time.sleep(0.5)
            comm.barrier()
            return 0
        counted = 0
        done = threading.Event()
        thread = threading.Thread(target=lambda: (comm.barrier(), done.set()))
        thread.start()
        while not done.is_set():
            counted += 1
            time.sleep(0.001)
        thread.join()
        return counted

    assert ranks.run(2, body)[0] > 5
