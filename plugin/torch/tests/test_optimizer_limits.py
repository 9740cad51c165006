"""What the optimizers refuse, and what they stand: wrong use, ranks that differ, several at once, ends of life."""

from __future__ import annotations

import warnings

import pytest
import torch

import onebit
import onebit.torch
import ranks
from models import flat, loss_of, model, train
from test_optimizer import make

torch.set_num_threads(1)


def test_what_cannot_be_optimised_is_named_with_what_to_do():
    def body(rank):
        def refused(tensor):
            return ranks.error_of(lambda: onebit.torch.Adam([("layer.weight", tensor)]))

        sparse = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = onebit.torch.Adam(sparse.named_parameters())
        sparse(torch.tensor([1, 2])).sum().backward()
        return {
            "complex": refused(torch.ones(3, dtype=torch.complex64)),
            "integer": refused(torch.ones(3, dtype=torch.int64)),
            "double": refused(torch.ones(3, dtype=torch.float64)),
            "gaps": refused(torch.ones(6)[::2]),
            "layout": refused(torch.eye(3).to_sparse()),
            "meta": refused(torch.ones(3, device="meta")),
            "sparse": ranks.error_of(optimizer.step),
            "twice": ranks.error_of(lambda: onebit.torch.Adam([sparse.weight, sparse.weight])),
            "lone": ranks.error_of(lambda: onebit.torch.Adam(sparse.weight)),
            "empty": ranks.error_of(lambda: onebit.torch.Adam([])),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = ranks.run(1, body)[0]
    for key, words in {
        "complex": "view_as_real",
        "integer": "only floating-point",
        "double": "float32, float16 and bfloat16",
        "gaps": ".contiguous()",
        "layout": "only dense",
        "meta": "meta device",
        "sparse": "sparse=False",
        "twice": "twice",
        "lone": "iterable",
        "empty": "empty",
    }.items():
        assert words in said[key]
        assert key in ("twice", "lone", "empty") or "weight" in said[key]


def test_parameters_of_other_devices_are_refused_in_words():
    from onebit.torch import cuda, parameters

    class Elsewhere:
        layout = torch.strided

        def __init__(self, device):
            self.device = torch.device(device)

    with pytest.raises(onebit.OneBitError, match="'layer.weight' is on xpu:0: onebit optimises models in host memory and on CUDA"):
        parameters.check("layer.weight", Elsewhere("xpu:0"))
    with pytest.raises(onebit.OneBitError, match="on cpu and cuda:0: an optimizer's are on one device"):
        cuda.device_of([Elsewhere("cpu"), Elsewhere("cuda:0")])
    assert cuda.device_of([Elsewhere("cuda:1"), Elsewhere("cuda:1")]) == torch.device("cuda:1")
    assert cuda.device_of([Elsewhere("cpu")]) is None
    assert cuda.device_of([]) is None


def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was():
    def body(rank):
        network = model()
        optimizer = make("Adam", network.parameters())
        wrong = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        twice = torch.nn.Parameter(torch.ones(3))
        said = [ranks.error_of(lambda: optimizer.add_param_group({"params": each})) for each in ([wrong], [twice, twice])]
        train(network, optimizer, rank, 1)
        return said, len(optimizer.param_groups)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said, groups = ranks.run(1, body)[0]
    assert "float64" in said[0] and "twice" in said[1]
    assert groups == 1


def test_hyper_parameters_out_of_range_or_without_effect_are_named():
    def body(rank):
        parameter = torch.nn.Parameter(torch.ones(3))

        def refused(kind, **arguments):
            return ranks.error_of(lambda: getattr(onebit.torch, kind)([parameter], **arguments))

        return [
            refused("OneBitAdam", betas=(0.9, 1.5)),
            refused("OneBitLamb", freeze_step=0),
            refused("OneBitAdam", lr=-1.0),
            refused("OneBitAdam", amsgrad=True),
            refused("OneBitAdam", max_coeff=3.0),
            refused("OneBitAdam", name=""),
            refused("OneBitAdam", name="a\0b"),
            ranks.error_of(lambda: onebit.torch.OneBitAdam([{"params": [parameter], "freeze_step": 3}])),
            ranks.error_of(lambda: onebit.torch.OneBitAdam([{"params": [parameter], "lr": -1.0}]).step()),
        ]

    for words, said in zip(
        ["betas[1]", "freeze_step", "lr", "AMSGrad", "max_coeff", "name is ''", "without a NUL", "cannot differ between groups", "lr"],
        ranks.run(1, body)[0],
    ):
        assert words in said


def test_a_model_that_differs_between_ranks_is_named():
    def values(rank):
        torch.manual_seed(rank)
        network = torch.nn.Linear(3, 2)
        optimizer = make("OneBitLamb", network.named_parameters())
        return ranks.error_of(lambda: train_linear(network, optimizer))

    def shapes(rank):
        torch.manual_seed(1)
        network = torch.nn.Linear(3, 2 + rank)
        optimizer = make("OneBitLamb", network.named_parameters())
        return ranks.error_of(lambda: train_linear(network, optimizer))

    def repaired(rank):
        torch.manual_seed(rank)
        network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        onebit.torch.broadcast_parameters(network, root=1)
        optimizer = make("OneBitLamb", network.named_parameters())
        train_linear(network, optimizer)
        return flat(network)

    for said in ranks.run(3, values):
        assert "'weight [2, 3]'" in said and "rank 1" in said and "broadcast_parameters" in said
    for said in ranks.run(2, shapes):
        assert "weight [2, 3]" in said and "weight [3, 3]" in said
    first, second = ranks.run(2, repaired)
    assert first == second


def train_linear(network, optimizer):
    network(torch.ones(4, 3) * (1 + optimizer.comm.rank) * torch.tensor([[1.0], [2.0], [3.0], [5.0]])).square().sum().backward()
    optimizer.step()


def test_two_optimizers_in_a_process_do_not_disturb_each_other():
    def body(rank, both):
        one, other = model(), model(width=8)
        first = make("OneBitLamb", one.parameters(), name="first")
        second = make("OneBitAdam", other.parameters(), name="second") if both else None
        for step in range(1, 15):
            train(one, first, rank, step, step)
            if second is not None:
                train(other, second, rank, step, step)
        return flat(one)

    assert ranks.run(2, body, True) == ranks.run(2, body, False)


def test_an_exception_between_backward_and_step_that_all_ranks_catch_leaves_training_whole():
    def body(rank, throws):
        network = model()
        optimizer = make("OneBitAdam", network.parameters())
        for step in range(1, 13):
            optimizer.zero_grad()
            loss_of(network, rank, step).backward()
            try:
                if step == 8:
                    if throws:
                        raise KeyError("a logger's fault")
                    continue
            except KeyError:
                continue
            optimizer.step()
        return flat(network)

    assert ranks.run(2, body, True) == ranks.run(2, body, False)


def test_a_rank_that_leaves_out_a_step_is_named_to_the_others():
    def body(rank):
        network = model()
        optimizer = make("OneBitAdam", network.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(1, 5):
            optimizer.zero_grad()
            loss_of(network, rank, step).backward()
            if not (rank == 1 and step == 2):
                try:
                    optimizer.step()
                except onebit.OneBitError as error:
                    return str(error), flat(network) == before
            before = flat(network)
            scheduler.step()
        return "nothing", False

    for said, unchanged in ranks.run(2, body):
        assert "rank 1 is at step 2" in said or "rank 1 is at" in said
        assert unchanged


def test_equal_gradients_on_all_ranks_are_warned_of():
    def body(rank, seen):
        network = model()
        optimizer = make("Adam", network.parameters())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(network, optimizer, rank * seen, 2)
        return [str(each.message) for each in caught if "same on all ranks" in str(each.message)]

    assert len(ranks.run(2, body, 0)[0]) == 1
    assert ranks.run(2, body, 1)[0] == []


def test_ends_of_life_in_any_order_harm_nothing():
    def body(rank):
        import gc

        comm = onebit.torch.init(name="short")
        optimizer = make("OneBitAdam", model().parameters(), comm=comm)
        train_some = [torch.zeros_like(each) for each in optimizer.param_groups[0]["params"]]
        for parameter, gradient in zip(optimizer.param_groups[0]["params"], train_some):
            parameter.grad = gradient
        optimizer.step()
        circle = [optimizer, comm]
        circle.append(circle)
        del optimizer, comm, circle
        gc.collect()
        other = make("OneBitAdam", model().parameters())
        other.comm.close()
        return ranks.error_of(other.step)

    assert all("closed" in said for said in ranks.run(2, body))


def test_an_optimizer_is_not_copied():
    import copy

    def body(rank):
        return ranks.error_of(lambda: copy.deepcopy(make("Adam", model().parameters())))

    assert "state_dict" in ranks.run(1, body)[0]
