"""States: the same ranks go on bit for bit, other numbers of ranks go on, and nothing that does not fit is taken."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile

import pytest
import torch

import onebit
import onebit.torch
import ranks
from models import flat, model, train
from test_optimizer import ALL, make

torch.set_num_threads(1)
SAVED, END = 11, 20  # in the compressed stage, for 0/1 Adam between two syncs


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def all_of(network, optimizer):
    """Weights, groups, and what the library's optimizer holds."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = [optimizer.read_state(each, name).tolist() for each in network.parameters() for name in ("exp_avg", "exp_avg_sq")]
    return flat(network), groups, optimizer.info(), optimizer.residual_norm(), state


def save_states(rank, kind, directory, way):
    network = model()
    optimizer = make(kind, network.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(1, END + 1):
        train(network, optimizer, rank, step, step)
        scheduler.step()
        if step == SAVED:
            if way == "directory":
                optimizer.save(f"{directory}/state")
            else:
                torch.save(optimizer.state_dict(), f"{directory}/{rank}.pt")
            assert not any(each.startswith(f"onebit-state-{os.getpid()}-") for each in os.listdir("/dev/shm"))
    return flat(network)


def go_on(rank, kind, directory, way, old_ranks):
    network = model()
    with torch.no_grad():
        for each in network.parameters():
            each.fill_(rank)  # the state holds the weights too
    optimizer = make(kind, network.named_parameters(), lr=5.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    if way == "directory":
        optimizer.load(f"{directory}/state")
    elif way == "own":
        optimizer.load_state_dict(torch.load(f"{directory}/{rank}.pt"))
    elif way == "first":
        optimizer.load_state_dict(torch.load(f"{directory}/0.pt"))
    else:
        optimizer.load_state_dict([torch.load(f"{directory}/{each}.pt") for each in range(old_ranks)])
    assert optimizer.info().steps == SAVED
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.9**SAVED)
    for step in range(SAVED + 1, END + 1):
        train(network, optimizer, rank, step, step)
        scheduler.step()
    while not optimizer.info().in_common:
        train(network, optimizer, rank, step := step + 1, step)
    return flat(network)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("way", ["directory", "own", "all"])
def test_the_same_ranks_go_on_bit_for_bit(kind, way, tmp_path):
    def whole(rank):
        return save_states(rank, kind, tmp_path, way)

    def resumed(rank):
        network = model()
        optimizer = make(kind, network.named_parameters(), lr=5.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if way == "directory":
            optimizer.load(f"{tmp_path}/state")
        else:
            paths = [rank] if way == "own" else range(2)
            states = [torch.load(f"{tmp_path}/{each}.pt") for each in paths]
            optimizer.load_state_dict(states[0] if way == "own" else states)
        for step in range(SAVED + 1, END + 1):
            train(network, optimizer, rank, step, step)
            scheduler.step()
        return flat(network)

    due = ranks.run(2, whole)
    assert ranks.run(2, resumed) == due


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("old, new", [(2, 1), (2, 3)])
@pytest.mark.parametrize("way", ["directory", "first", "all"])
def test_another_number_of_ranks_goes_on(kind, old, new, way, tmp_path):
    ranks.run(old, save_states, kind, tmp_path, "directory" if way == "directory" else "own")
    results = ranks.run(new, go_on, kind, tmp_path, way, old)
    assert all(each == results[0] for each in results)
    assert all(abs(value) < 3 for value in results[0])


def test_the_state_of_one_rank_is_enough_for_the_same_number_of_ranks(tmp_path):
    ranks.run(2, save_states, "OneBitLamb", tmp_path, "own")
    first, second = ranks.run(2, go_on, "OneBitLamb", tmp_path, "first", 2)
    assert first == second


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_states_survive_files_and_16_bit_masters(dtype):
    def body(rank):
        weight = torch.nn.Parameter(torch.ones(100, dtype=dtype))
        optimizer = make("Adam", [weight], lr=1e-5)

        def steps(count):
            for _ in range(count):
                weight.grad = torch.ones(100, dtype=dtype)
                optimizer.step()

        steps(50)
        state = through_a_file(optimizer.state_dict())
        steps(200)
        due = weight.tolist()
        optimizer.load_state_dict(state)
        steps(200)
        return weight.tolist() == due and due[0] < 1

    assert ranks.run(1, body) == [True]


def test_a_state_from_before_the_first_step_holds_the_groups():
    def body(rank):
        network = model()
        state = through_a_file(make("OneBitLamb", network.parameters(), lr=0.25).state_dict())
        other = make("OneBitLamb", network.parameters())
        other.load_state_dict(state)
        train(network, other, rank, 1)
        return other.param_groups[0]["lr"], other.info().steps

    assert ranks.run(2, body) == [(0.25, 1)] * 2


def test_hyper_parameters_and_masks_after_a_load_are_those_of_the_file_and_of_the_program():
    def body(rank):
        weight = torch.nn.Parameter(torch.ones(3))
        mask = torch.tensor([1.0, 0.0, 1.0])
        optimizer = make("Adam", [{"params": [weight], "exp_avg_mask": mask}], weight_decay=0.25)
        weight.grad = torch.ones(3)
        optimizer.step()
        state = through_a_file(optimizer.state_dict())
        other = make("Adam", [{"params": [weight], "exp_avg_mask": 1 - mask}], betas=(0.5, 0.5))
        other.step()  # it has stepped with other hyper-parameters before
        other.load_state_dict(state)
        other.step()
        group = other.param_groups[0]
        return group["weight_decay"], group["betas"], group["exp_avg_mask"].tolist()

    assert ranks.run(1, body) == [(0.25, (0.9, 0.999), [0.0, 1.0, 0.0])]


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    def body(rank):
        network = model()
        optimizer = make("OneBitLamb", network.named_parameters())
        train(network, optimizer, rank, 3)
        state = optimizer.state_dict()
        optimizer.save(str(tmp_path / "good"))
        before = all_of(network, optimizer)

        def damaged(**changes):
            return {**state, "onebit": {**state["onebit"], **changes}}

        torn = state["onebit"]["state"].clone()
        torn[len(torn) // 2] += 1
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "optimizer.groups.json").write_text("{")
        adam = torch.optim.Adam(network.parameters()).state_dict()
        said = {
            "torn": lambda: optimizer.load_state_dict(damaged(state=torn)),
            "short": lambda: optimizer.load_state_dict(damaged(state=torn[:50])),
            "kind": lambda: optimizer.load_state_dict(damaged(type="OneBitAdam")),
            "format": lambda: optimizer.load_state_dict(damaged(format=9)),
            "twice": lambda: optimizer.load_state_dict([state, state]),
            "steps": lambda: optimizer.load_state_dict([damaged(ranks=2), damaged(rank=1, ranks=2, steps=9)]),
            "mixed": lambda: optimizer.load_state_dict([state, {**state, "onebit": None}]),
            "stranger": lambda: optimizer.load_state_dict(adam),
            "groups": lambda: optimizer.load_state_dict({**state, "param_groups": state["param_groups"] * 2}),
            "none": lambda: optimizer.load_state_dict([]),
            "no_state": lambda: optimizer.load_state_dict(damaged(state=None)),
            "no_bytes": lambda: optimizer.load_state_dict(damaged(state=torn.float())),
            "elsewhere": lambda: optimizer.load_state_dict(damaged(rank="../../tmp/x")),
            "no_rank": lambda: optimizer.load_state_dict(damaged(rank=7)),
            "nothing": lambda: optimizer.load_state_dict({**state, "onebit": 3}),
            "missing": lambda: optimizer.load(str(tmp_path / "nowhere")),
            "json": lambda: optimizer.load(str(tmp_path / "bad")),
        }
        found = {key: ranks.error_of(action) for key, action in said.items()}
        changed = model(width=12)
        other = make("OneBitLamb", changed.named_parameters())
        found["model"] = ranks.error_of(lambda: other.load_state_dict(state))
        found["early"] = ranks.error_of(lambda: other.save(str(tmp_path / "early")))
        train(changed, other, rank, 1)
        found["claimed"] = ranks.error_of(lambda: other.save(str(tmp_path / "good")))
        assert all_of(network, optimizer) == before
        train(network, optimizer, rank, 2)
        return found

    said = ranks.run(1, body)[0]
    for key, words in {
        "torn": "damaged",
        "short": "truncated",
        "kind": "of OneBitAdam, not of OneBitLamb",
        "format": "format 9",
        "twice": "rank 0",
        "steps": "different steps",
        "mixed": "before the first step",
        "stranger": "not of an optimizer of onebit",
        "groups": "groups",
        "none": "empty list",
        "no_state": "state_dict 0 is damaged, in its state",
        "no_bytes": "damaged, in its state",
        "elsewhere": "damaged, in its rank",
        "no_rank": "damaged, in its rank, ranks",
        "nothing": "damaged, in its format, type",
        "missing": "nowhere",
        "json": "damaged",
        "model": "0.weight [16, 8]",
        "early": "before the first step",
        "claimed": "another name=",
    }.items():
        assert words in said[key], (key, said[key])


def test_a_state_that_does_not_lie_in_a_row_is_loaded():
    def body(rank):
        network = model()
        optimizer = make("OneBitAdam", network.named_parameters())
        train(network, optimizer, rank, 3)
        state = optimizer.state_dict()
        saved = flat(network)
        train(network, optimizer, rank, 4, 4)
        scattered = state["onebit"]["state"].repeat_interleave(2)[::2]
        optimizer.load_state_dict({**state, "onebit": {**state["onebit"], "state": scattered}})
        return flat(network) == saved

    assert ranks.run(1, body) == [True]


@pytest.mark.parametrize("name", ["net/1", "50%", "one\ntwo", "größe", "."])
def test_states_go_by_any_name_of_an_optimizer(name, tmp_path):
    def body(rank):
        network = model()
        optimizer = make("OneBitAdam", network.named_parameters(), name=name)
        train(network, optimizer, rank, 3)
        state = optimizer.state_dict()
        optimizer.save(tmp_path)
        for load in (lambda: optimizer.load_state_dict(state), lambda: optimizer.load(tmp_path)):
            train(network, optimizer, rank, 4, 4)
            load()
            assert optimizer.info().steps == 3
        return len(os.listdir(tmp_path))

    assert ranks.run(1, body) == [2]


def test_a_save_that_cannot_write_the_groups_leaves_the_earlier_one_whole(tmp_path):
    def body(rank, directory):
        network = model()
        optimizer = make("OneBitAdam", network.named_parameters())
        train(network, optimizer, rank, 3)
        optimizer.save(directory)
        train(network, optimizer, rank, 4, 4)
        optimizer.param_groups[0]["note"] = object()
        said = ranks.error_of(lambda: optimizer.save(directory))
        del optimizer.param_groups[0]["note"]
        left = sorted(os.listdir(directory))
        optimizer.load(directory)
        return said, left, optimizer.info().steps

    said, left, steps = ranks.run(1, body, str(tmp_path))[0]
    assert "holds a object" in said
    assert left == ["optimizer.groups.json", "optimizer.rank-0-of-1.optimizer"]
    assert steps == 3


def test_a_state_that_does_not_fit_into_memory_after_all_goes_over_the_disk(monkeypatch, tmp_path):
    from onebit.torch import checkpoint

    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(checkpoint, "_SHARED_MEMORY", str(memory))
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    filled = []

    def fill(directory):
        filled.append(directory)
        if directory.startswith(str(memory)):
            raise OSError(errno.ENOSPC, "another rank was faster")

    with checkpoint._filled_directory(1, fill) as directory:
        assert directory == filled[1] and directory.startswith(str(disk))
        assert os.listdir(memory) == []
    assert os.listdir(disk) == []
    with pytest.raises(OSError, match="another rank was faster"):
        monkeypatch.setattr(tempfile, "tempdir", str(memory))
        with checkpoint._filled_directory(1, fill):
            pass
    assert os.listdir(memory) == []


def test_a_save_where_nothing_can_be_written_says_where_and_why(tmp_path):
    (tmp_path / "file").write_text("")

    def body(rank):
        network = model()
        optimizer = make("OneBitAdam", network.named_parameters())
        train(network, optimizer, rank, 2)
        return ranks.error_of(lambda: optimizer.save(str(tmp_path / "file" / "state")))

    for said in ranks.run(2, body):
        assert "OneBitError" in said and f"save to {tmp_path}/file/state" in said and "Not a directory" in said


@pytest.mark.parametrize("rate", ["float32", "tensor"])
def test_numbers_of_other_libraries_in_groups_are_saved_as_numbers(rate, tmp_path):
    numpy = pytest.importorskip("numpy")

    def body(rank):
        network = model()
        optimizer = make("OneBitAdam", network.named_parameters())
        optimizer.param_groups[0]["lr"] = numpy.float32(0.25) if rate == "float32" else torch.tensor(0.25)
        train(network, optimizer, rank, 2)
        optimizer.save(str(tmp_path))
        optimizer.load(str(tmp_path))
        return optimizer.param_groups[0]["lr"]

    assert ranks.run(1, body) == [0.25]


def test_ranks_that_died_leave_a_state_from_which_others_go_on(tmp_path):
    def dying(rank):
        network = model()
        optimizer = make("OneBitLamb", network.named_parameters())
        train(network, optimizer, rank, 10)
        if rank == 1:
            os._exit(1)
        with pytest.raises(onebit.OneBitError, match="rank 1"):
            train(network, optimizer, rank, 1000)
        optimizer.save(str(tmp_path))
        return optimizer.info().steps

    def going_on(rank):
        network = model()
        optimizer = make("OneBitLamb", network.named_parameters())
        optimizer.load(str(tmp_path))
        at = optimizer.info().steps
        train(network, optimizer, rank, 5)
        return at, flat(network)

    steps = ranks.run(2, dying, dead=[1])[0]
    first, second = ranks.run(2, going_on)
    assert first == second
    assert first[0] == steps >= 10


@pytest.mark.parametrize("fault", ["groups", "damaged", "other_steps"])
def test_where_one_rank_cannot_load_a_directory_no_rank_does_and_none_waits(tmp_path, fault):
    def body(rank):
        network = model()
        optimizer = make("OneBitLamb", network.named_parameters())
        train(network, optimizer, rank, 3)
        own = tmp_path / str(rank)
        optimizer.save(str(tmp_path / "state"))
        optimizer.comm.barrier()
        shutil.copytree(tmp_path / "state", own)
        groups = own / "optimizer.groups.json"
        if rank == 1:
            if fault == "groups":
                groups.unlink()
            elif fault == "damaged":
                groups.write_text("{")
            else:
                groups.write_text(groups.read_text().replace('"steps": 3', '"steps": 2'))
        train(network, optimizer, rank, 4, 4)
        before = all_of(network, optimizer)
        said = ranks.error_of(lambda: optimizer.load(str(own)))
        assert all_of(network, optimizer) == before
        train(network, optimizer, rank, 5, 5)  # all go on together
        return said

    said = ranks.run(3, body, ONEBIT_TIMEOUT="600")
    assert {"groups": "is missing", "damaged": "is damaged", "other_steps": "of step 2"}[fault] in said[1]
    for rank in (0, 2):
        assert "rank 1" in said[rank] and "its error says why" in said[rank]


def test_where_one_rank_cannot_load_its_state_dict_no_rank_does_and_none_waits():
    def body(rank):
        network = model()
        optimizer = make("OneBitAdam", network.named_parameters())
        early = optimizer.state_dict()
        train(network, optimizer, rank, 3)
        state = optimizer.state_dict()
        said = []
        for wrong in ({"param_groups": []}, early, {**state, "param_groups": []}):
            given = wrong if rank == 1 else state
            said.append(ranks.error_of(lambda: optimizer.load_state_dict(given)))
        train(network, optimizer, rank, 4, 4)
        return said

    said = ranks.run(2, body, ONEBIT_TIMEOUT="600")
    assert "not of an optimizer of onebit" in said[1][0] and "rank 1 cannot load its state_dict" in said[0][0]
    assert all("before the first step" in each[1] for each in said)
    assert "ValueError" in said[1][2] and "rank 1 cannot load its parameter groups" in said[0][2]
