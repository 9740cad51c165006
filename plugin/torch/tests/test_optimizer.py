"""The optimizers in training loops as people write them."""

from __future__ import annotations

import pytest
import torch

import onebit
import onebit.torch
import ranks
from models import batch, flat, loss_of, model, train

torch.set_num_threads(1)

ONE_BIT = {
    "OneBitLamb": dict(freeze_step=6),
    "OneBitAdam": dict(freeze_step=6),
    "ZeroOneAdam": dict(var_freeze_step=6, local_step_clipper=4, local_step_scaler=8),
}
ALL = {**ONE_BIT, "Lamb": {}, "Adam": {}}


def make(kind, params, **arguments):
    return getattr(onebit.torch, kind)(params, **{"lr": 1e-2, **ALL[kind], **arguments})


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", [1, 3])
def test_training_lowers_the_loss_and_leaves_all_ranks_equal(kind, size):
    def body(rank):
        network = model()
        optimizer = make(kind, network.named_parameters())
        losses = train(network, optimizer, rank, 40)
        step = 41
        while not optimizer.info().in_common:
            train(network, optimizer, rank, step, step)
            step += 1
        return losses, flat(network), optimizer.info(), optimizer.comm.stats()

    results = ranks.run(size, body)
    first = results[0]
    assert all(each[1] == first[1] for each in results)
    assert sum(first[0][-5:]) < 0.8 * sum(first[0][:5])
    assert first[2].compressed == (kind in ONE_BIT)
    assert (first[3]["compressed_calls"] > 0) == (kind in ONE_BIT and size > 1)


def test_adam_of_all_ranks_is_pytorchs_adamw_on_the_mean_gradient():
    def body(rank):
        network = model()
        optimizer = onebit.torch.Adam(network.parameters(), lr=1e-2, weight_decay=0.1)
        train(network, optimizer, rank, 20)
        return network.state_dict()

    network = model()
    reference = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(1, 21):
        reference.zero_grad()
        sum(loss_of(network, rank, step) / 2 for rank in range(2)).backward()
        reference.step()
    for found in ranks.run(2, body):
        for key, due in network.state_dict().items():
            torch.testing.assert_close(found[key], due, rtol=1e-4, atol=1e-6)


def test_gradient_accumulation_is_the_larger_batch():
    def body(rank, pieces):
        network = model()
        optimizer = make("OneBitAdam", network.parameters())
        for step in range(10):
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            for part, aim in zip(inputs.chunk(pieces), targets.chunk(pieces)):
                (torch.nn.functional.mse_loss(network(part), aim) / pieces).backward()
            optimizer.step()
        return flat(network), optimizer.comm.stats()["wire_bytes_sent"]

    whole, parts = ranks.run(2, body, 1)[0], ranks.run(2, body, 4)[0]
    assert whole[0] == pytest.approx(parts[0], abs=0.02)
    assert whole[1] == parts[1]


def test_a_scheduler_sets_the_rate_of_each_step_and_a_rate_of_0_stands_still():
    def body(rank):
        network = model()
        optimizer = make("OneBitLamb", network.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step >= 8 else 1 / (1 + step))
        seen = []
        for step in range(1, 11):
            before = flat(network)
            train(network, optimizer, rank, step, step)
            scheduler.step()
            seen.append(flat(network) != before)
        return seen

    assert ranks.run(2, body)[0] == [True] * 8 + [False] * 2


def test_groups_have_their_own_rates_and_decay():
    def body(rank):
        network = model()
        layers = list(network.children())
        optimizer = make(
            "OneBitAdam",
            [
                {"params": layers[0].parameters(), "lr": 0.0, "weight_decay": 0.5},
                {"params": layers[2].parameters(), "lr": 1e-2},
                {"params": layers[3].parameters(), "lr": 1e-2, "betas": (0.8, 0.99)},
            ],
        )
        before = [layer.weight.clone() for layer in layers if hasattr(layer, "weight")]
        train(network, optimizer, rank, 10)
        after = [layer.weight for layer in layers if hasattr(layer, "weight")]
        return [torch.equal(a, b) for a, b in zip(before, after)]

    assert ranks.run(2, body)[0] == [True, False, False]


def test_only_the_rate_can_change_once_steps_are_taken():
    def body(rank):
        network = model()
        optimizer = make("Adam", network.parameters())
        train(network, optimizer, rank, 1)
        optimizer.param_groups[0]["betas"] = [0.9, 0.999]  # the same
        train(network, optimizer, rank, 1)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        assert "weight_decay" in ranks.error_of(lambda: train(network, optimizer, rank, 1))
        optimizer.param_groups[0].update(betas=(0.5, 0.9), weight_decay=0.0)
        said = [ranks.error_of(lambda: train(network, optimizer, rank, 1))]
        said.append(ranks.error_of(lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})))
        network.to(torch.float64)
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        said.append(ranks.error_of(optimizer.step))
        return said

    changed, added, moved = ranks.run(1, body)[0]
    assert "betas of group 0 has changed" in changed and "cycle_momentum" in changed
    assert "after the first step" in added
    assert "has moved" in moved


def test_a_closure_is_evaluated_with_gradients():
    def body(rank):
        network = model()
        optimizer = make("Lamb", network.parameters())

        def closure():
            optimizer.zero_grad()
            loss = loss_of(network, rank, 1)
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(10)]

    losses = ranks.run(2, body)[0]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ALL)
def test_a_parameter_that_never_gets_a_gradient_stays(kind):
    def body(rank):
        network = model()
        idle = torch.nn.Parameter(torch.linspace(-1, 1, 50))
        frozen = torch.nn.Parameter(torch.ones(7), requires_grad=False)
        empty = torch.nn.Parameter(torch.empty(0, 3))
        optimizer = make(kind, [*network.parameters(), idle, frozen, empty])
        train(network, optimizer, rank, 30)
        assert optimizer.read_state(idle, "exp_avg").abs().sum() == 0
        return idle.tolist(), frozen.tolist(), flat(network)

    for idle, frozen, weights in ranks.run(2, body):
        assert idle == torch.linspace(-1, 1, 50).tolist()
        assert frozen == [1.0] * 7
        assert all(abs(each) < 10 for each in weights)


def test_a_gradient_that_only_one_rank_has_counts_for_all():
    def body(rank):
        shared = torch.nn.Parameter(torch.zeros(4))
        optimizer = make("Adam", [shared])
        if rank == 1:
            shared.grad = torch.full((4,), 2.0)
        optimizer.step()
        return optimizer.read_state(shared, "exp_avg").tolist(), shared.tolist()

    first, second = ranks.run(2, body)
    assert first == second
    assert first[0] == pytest.approx([0.1] * 4)


def test_clipping_by_the_norm_of_the_mean_gives_all_ranks_one_factor():
    def body(rank, clipping):
        network = model()
        optimizer = make("Adam", network.parameters(), gradient_clipping=clipping)
        train(network, optimizer, rank, 1)
        return torch.cat([optimizer.read_state(each, "exp_avg").flatten() for each in network.parameters()])

    free, clipped = ranks.run(2, body, 0.0), ranks.run(2, body, 1e-3)
    assert torch.equal(clipped[0], clipped[1])
    assert float(clipped[0].norm()) == pytest.approx(1e-4, rel=1e-3)
    torch.testing.assert_close(clipped[0] / clipped[0].norm(), free[0] / free[0].norm())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters_learn_steps_smaller_than_their_precision(kind, dtype):
    def body(rank):
        weight = torch.nn.Parameter(torch.ones(64, dtype=dtype))
        optimizer = make(kind, [weight], lr=1e-4, **({"min_coeff": 1.0, "max_coeff": 1.0} if "Lamb" in kind else {}))
        for _ in range(100):
            weight.grad = torch.full((64,), 0.5 + rank, dtype=dtype)
            optimizer.step()
        return weight.float().tolist(), optimizer.info().in_common

    (first, in_common), (second, _) = ranks.run(2, body)
    assert first == second or not in_common
    assert max(first + second) < 1


def test_autocast_in_bf16_trains():
    def body(rank):
        network = model()[:3]  # PyTorch 1.13 has no LayerNorm of mixed types on the CPU
        optimizer = make("OneBitLamb", network.parameters())
        losses = []
        for step in range(40):
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(network(inputs).float(), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, flat(network)

    first, second = ranks.run(2, body)
    assert first[1] == second[1]
    assert sum(first[0][-5:]) < sum(first[0][:5])


class Scaler:
    """What torch.amp.GradScaler does around a step on a CPU, which older PyTorches cannot: 1.13 has one for CUDA only.
    For each rank, as there, with a scale of its own."""

    def __init__(self):
        self.value = 2.0**24

    def scale(self, loss):
        return loss * self.value

    def step(self, optimizer):
        assert optimizer._step_supports_amp_scaling
        bad = any(
            not bool(torch.isfinite(each.grad).all())
            for group in optimizer.param_groups
            for each in group["params"]
            if each.grad is not None
        )
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(self.value), torch.tensor(float(bad))
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        if bad:
            self.value /= 2

    def update(self):
        pass


def scaler():
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", init_scale=2.0**24)
    return Scaler()


@pytest.mark.parametrize("kind", ALL)
def test_a_grad_scaler_changes_nothing_but_steps_that_overflow_which_all_ranks_skip(kind):
    def body(rank, scaled):
        network = model()
        optimizer = make(kind, network.parameters())
        scale = scaler()
        skipped = []
        for step in range(1, 16):
            optimizer.zero_grad()
            loss = loss_of(network, rank, step)
            if step == 9:
                if not scaled:
                    continue
                if rank == 1:
                    loss = loss * float("inf")
            if scaled:
                scale.scale(loss).backward()
                scale.step(optimizer)
                scale.update()
                skipped.append(optimizer.step_was_skipped)
            else:
                loss.backward()
                optimizer.step()
        return flat(network), skipped, optimizer.info()

    plain, scaled = ranks.run(2, body, False), ranks.run(2, body, True)
    assert scaled[0][1] == scaled[1][1] == [False] * 8 + [True] + [False] * 6
    assert scaled[0][2].skipped_steps == 1 and scaled[0][2].steps == 14
    assert [each[0] for each in scaled] == [each[0] for each in plain]


def test_fp16_gradients_are_not_unscaled():
    def body(rank):
        weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
        optimizer = make("Adam", [weight])
        weight.grad = torch.ones(3, dtype=torch.float16)
        optimizer.grad_scale = torch.tensor(8.0)
        return ranks.error_of(optimizer.step)

    assert "autocast" in ranks.run(1, body)[0]


def test_memory_formats_other_than_contiguous_are_trained_as_they_lie():
    def body(rank, channels_last):
        torch.manual_seed(3)
        network = torch.nn.Conv2d(3, 8, 3)
        if channels_last:
            network = network.to(memory_format=torch.channels_last)
        optimizer = make("Adam", network.parameters())
        for step in range(5):
            optimizer.zero_grad()
            inputs = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(step + 10 * rank))
            network(inputs).square().mean().backward()
            if step == 3:  # a gradient that lies otherwise than its parameter
                network.weight.grad = network.weight.grad.contiguous()
            optimizer.step()
        assert network.weight.is_contiguous() != channels_last
        return network.weight.detach().contiguous(), optimizer.read_state(network.weight, "exp_avg").contiguous()

    for one, other in zip(ranks.run(2, body, False), ranks.run(2, body, True)):
        torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one[1], other[1], rtol=1e-4, atol=1e-5)


def test_masks_keep_momentum_away():
    def body(rank):
        weight = torch.nn.Parameter(torch.ones(4, 3))
        mask = torch.tensor([1.0, 0.0, 1.0])
        optimizer = make("OneBitAdam", [{"params": [weight], "exp_avg_mask": mask}])
        for _ in range(12):
            weight.grad = torch.ones(4, 3) * (1 + rank)
            optimizer.step()
        return weight.tolist()

    for row in ranks.run(2, body)[0]:
        assert row[1] == 1.0 and row[0] < 1.0 and row[2] < 1.0


def test_freeze_ends_the_warm_up():
    def body(rank):
        network = model()
        optimizer = make("OneBitLamb", network.parameters(), freeze_step=1000)
        assert "before the first step" in ranks.error_of(optimizer.freeze)
        train(network, optimizer, rank, 5)
        optimizer.freeze()
        train(network, optimizer, rank, 6, 6)
        assert all(optimizer.coefficient(each) > 0 for each in network.parameters())
        return optimizer.info().compressed

    assert ranks.run(2, body) == [True, True]
