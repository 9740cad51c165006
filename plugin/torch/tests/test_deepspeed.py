"""DeepSpeed's configurations are read as they are, and what would have no effect is said."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

import onebit.torch
import ranks

torch.set_num_threads(1)


def read(config):
    """What a rank makes of a configuration: (type, groups, decision), or the error; and the warnings."""

    def body(rank):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                made = onebit.torch.from_deepspeed_config([torch.nn.Parameter(torch.ones(3))], config)
            except onebit.torch.OneBitError as error:
                return str(error), []
        group = {key: value for key, value in made.param_groups[0].items() if key != "params"}
        return (type(made).__name__, group), [str(each.message) for each in caught]

    return ranks.run(1, body)[0]


# The sections of DeepSpeed's own tutorials.
ONEBIT_ADAM = {
    "type": "OneBitAdam",
    "params": {"lr": 4e-4, "freeze_step": 23000, "cuda_aware": False, "comm_backend_name": "nccl"},
}
ONEBIT_LAMB = {
    "type": "OneBitLamb",
    "params": {
        "lr": 11e-3, "weight_decay": 0.01, "bias_correction": False, "freeze_step": 1000, "max_coeff": 0.3,
        "min_coeff": 0.01, "coeff_beta": 0.9, "factor_max": 4.0, "factor_min": 0.5, "factor_threshold": 0.1,
    },
}  # fmt: skip
ZERO_ONE_ADAM = {
    "type": "ZeroOneAdam",
    "params": {
        "lr": 1e-3, "weight_decay": 0.01, "bias_correction": False, "var_freeze_step": 1000, "var_update_scaler": 16,
        "local_step_scaler": 1000, "local_step_clipper": 16, "cuda_aware": False, "comm_backend_name": "nccl",
    },
}  # fmt: skip


@pytest.mark.parametrize("section", [ONEBIT_ADAM, ONEBIT_LAMB, ZERO_ONE_ADAM])
def test_sections_are_read_as_they_are(section):
    (kind, group), said = read(section)
    assert kind == section["type"] and said == []
    assert group["lr"] == section["params"]["lr"]
    for key in ("weight_decay", "max_coeff"):
        assert key not in section["params"] or group[key] == section["params"][key]


@pytest.mark.parametrize("spelling", ["onebitlamb", "OneBitLamb", "ONEBITLAMB"])
def test_types_are_read_in_any_case(spelling):
    assert read({"type": spelling})[0][0] == "OneBitLamb"


def test_a_whole_configuration_gives_its_optimizer_and_clipping_and_says_what_is_left(tmp_path):
    whole = {
        "train_batch_size": 64,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "optimizer": ONEBIT_LAMB,
        "scheduler": {"type": "WarmupLR", "params": {}},
        "fp16": {"enabled": True},
        "bf16": {"enabled": False},
        "zero_optimization": {"stage": 0},
    }
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(whole))
    for config in (whole, path, str(path)):
        (kind, _), said = read(config)
        assert kind == "OneBitLamb"
        assert len(said) == 3
        for words in ("gradient_accumulation_steps", "scheduler", "fp16"):
            assert any(words in each for each in said)


@pytest.mark.parametrize(
    "further, words",
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16}, ["4 backwards a step on 1 ranks"]),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 16}, []),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 4}, ["losses divided"]),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}, []),
        ({"amp": {"enabled": True}}, ['"amp"']),
    ],
)
def test_what_the_engine_would_have_done_by_itself_is_warned_of(further, words):
    _, said = read({"optimizer": ONEBIT_ADAM, **further})
    assert len(said) == len(words) and all(word in each for word, each in zip(words, said))


def test_gradient_clipping_of_the_configuration_clips():
    def body(rank):
        weight = torch.nn.Parameter(torch.zeros(1))
        config = {"gradient_clipping": 0.5, "optimizer": {"type": "Adam", "params": {"lr": 1.0}}}
        optimizer = onebit.torch.from_deepspeed_config([weight], config)
        weight.grad = torch.full((1,), 100.0)
        optimizer.step()
        return optimizer.read_state(weight, "exp_avg").item()

    assert ranks.run(1, body)[0] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "config, words",
    [
        ({"optimizer": ONEBIT_ADAM, "zero_optimization": {"stage": 1}}, '"zero_optimization": stage 1'),
        ({"optimizer": ONEBIT_ADAM, "zero_optimization": True}, '"zero_optimization": stage True'),
        ({"train_batch_size": 3}, 'no "optimizer" section'),
        ({"optimizer": "OneBitAdam"}, 'no "optimizer" section'),
        ({"optimizer": {"type": "OneBitAdam", "params": None}, "gradient_clipping": 1.0}, '"params" must be an object'),
        ([], "JSON object"),
        ({"type": "SGD"}, "OneBitLamb, OneBitAdam, ZeroOneAdam"),
        ({"type": "OneBitAdam", "params": {"freeze_stepp": 3}}, "freeze_stepp"),
        ({"type": "OneBitAdam", "params": {"max_grad_norm": 1.0}}, "gradient_clipping"),
        ({"type": "OneBitAdam", "params": {"bias_correction": 1}}, "true or false"),
        ({"type": "OneBitAdam", "params": {"lr": "1e-3"}}, "a number"),
        ({"type": "OneBitAdam", "params": {"lr": {1, 2}}}, "not JSON"),
    ],
)
def test_what_cannot_be_meant_is_an_error_that_says_what_to_do(config, words):
    assert words in read(config)[0]


def test_a_file_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text("{")
    assert str(path) in read(path)[0]


def test_deepspeeds_spelling_and_its_numbers_are_there():
    def body(rank):
        assert onebit.torch.OnebitLamb is onebit.torch.OneBitLamb and onebit.torch.OnebitAdam is onebit.torch.OneBitAdam
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = onebit.torch.OnebitLamb([weight], lr=0.1, freeze_step=5, deepspeed_compat=True)
        weight.grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
        optimizer.step()
        # m / (sqrt(v) + eps) without bias corrections: 0.1 / sqrt(0.001) in each element; ||w|| / ||u|| of that.
        return weight.tolist()

    assert ranks.run(1, body)[0] == pytest.approx([0.9] * 4, rel=1e-4)
