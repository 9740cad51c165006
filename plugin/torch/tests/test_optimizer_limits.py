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


def test_parameters_without_a_shape_are_refused_with_what_to_do():
    def body(rank):
        network = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d(affine=False))
        said = [
            ranks.error_of(lambda: onebit.torch.Adam(network.named_parameters())),
            ranks.error_of(lambda: onebit.torch.broadcast_parameters(network)),
            ranks.error_of(lambda: onebit.torch.broadcast_parameters(network.buffers())),
        ]
        network(torch.ones(2, 3))
        onebit.torch.broadcast_parameters(network)
        onebit.torch.Adam(network.named_parameters())
        return said

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named, broadcast, buffers = ranks.run(1, body)[0]
    assert "'0.weight'" in named and "'0.weight'" in broadcast and "'0'" in buffers
    assert all("OneBitError" in said and "model(inputs)" in said for said in (named, broadcast, buffers))


def test_parameters_that_share_memory_are_refused():
    def body(rank):
        whole = torch.ones(20)
        same, again = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        again.data = same.data

        def refused(*pairs):
            optimizer = onebit.torch.Adam(list(pairs))
            for _, each in pairs:
                each.grad = torch.ones_like(each)
            return ranks.error_of(optimizer.step)

        beside = onebit.torch.Adam([torch.nn.Parameter(whole[:8]), torch.nn.Parameter(whole[8:8]), torch.nn.Parameter(whole[8:])])
        beside.step()
        return (
            refused(("one", same), ("other", again)),
            refused(("low", torch.nn.Parameter(whole[:12])), ("high", torch.nn.Parameter(whole[8:]))),
        )

    same, overlapping = ranks.run(1, body)[0]
    assert "'one [3]' and 'other [3]' share memory" in same
    assert "'low [12]' and 'high [12]' share memory" in overlapping


def test_what_is_frozen_or_unfrozen_after_the_first_step_is_named():
    def body(rank, frozen_at_first):
        network = model()
        network[0].weight.requires_grad_(not frozen_at_first)
        optimizer = make("OneBitAdam", network.named_parameters())
        train(network, optimizer, rank, 3)
        network[0].weight.requires_grad_(frozen_at_first)
        before = flat(network)
        return ranks.error_of(lambda: train(network, optimizer, rank, 4, 4)), flat(network) == before

    for said, unchanged in ranks.run(2, body, False):
        assert "'0.weight [16, 8]' was frozen" in said and unchanged
    for said, unchanged in ranks.run(2, body, True):
        assert "'0.weight [16, 8]' has a gradient" in said and "new optimizer" in said and unchanged


def test_numbers_of_other_libraries_are_taken_as_hyper_parameters():
    numpy = pytest.importorskip("numpy")

    def body(rank):
        parameter = torch.nn.Parameter(torch.ones(2))
        given = {"lr": torch.tensor(0.5), "betas": (numpy.float32(0.5), torch.tensor(0.75)), "weight_decay": numpy.float32(0.25)}
        group = onebit.torch.OneBitAdam([parameter], freeze_step=numpy.int64(5), **given).param_groups[0]
        refused = [
            ranks.error_of(lambda: onebit.torch.OneBitAdam([parameter], betas=0.9)),
            ranks.error_of(lambda: onebit.torch.OneBitAdam([parameter], lr=torch.ones(2))),
        ]
        return group["lr"], group["betas"], group["weight_decay"], refused

    lr, betas, decay, (beta, rate) = ranks.run(1, body)[0]
    assert (lr, betas, decay) == (0.5, (0.5, 0.75), 0.25)
    assert "betas is 0.9; it must be two numbers" in beta
    assert "OneBitError" in rate and "not JSON" in rate


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


def test_what_is_of_one_process_is_neither_copied_nor_pickled():
    import copy
    import pickle

    def body(rank):
        made = [make("Adam", model().parameters()), onebit.torch.init(name="other"), onebit.torch.HookState(name="hook")]
        return [ranks.error_of(lambda: way(each)) for each in made for way in (copy.copy, copy.deepcopy, pickle.dumps)]

    said = ranks.run(1, body)[0]
    for words, three in zip(("state_dict", "init()", "save_residuals"), (said[:3], said[3:6], said[6:])):
        assert all("TypeError" in each and words in each for each in three)
