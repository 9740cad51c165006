"""The report says what was done and why, in numbers that add up."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

import onebit.torch
import ranks
from models import model, train

torch.set_num_threads(1)


def test_nothing_made_yet_is_said():
    assert ranks.run(1, lambda rank: str(onebit.torch.report())) == ["onebit: nothing has been made yet"]


def test_stages_reasons_and_bytes_are_those_of_the_steps():
    def body(rank):
        network = model(width=512)
        optimizer = onebit.torch.OneBitLamb(network.parameters(), freeze_step=4, name="the model's")
        early = onebit.torch.report().as_dict()["optimizers"][0]["decision"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(network, optimizer, rank, 24)
        report = onebit.torch.report()
        return early, report.as_dict(), str(report), sum(each.numel() for each in network.parameters())

    early, found, text, elements = ranks.run(2, body)[0]
    assert early == "exact: warm-up, until freeze_step 4"
    json.dumps(found)
    (comm,) = found["communicators"]
    (optimizer,) = found["optimizers"]
    assert comm["ranks"] == 2 and comm["compressed_calls"] == 20
    assert 24 * 4 * elements <= comm["reduced_bytes"] < 24 * 4 * elements + 10_000
    assert comm["exact_bytes"] == comm["reduced_bytes"]
    # 4 steps in full, 20 in 1 bit: 24 / (4 + 20/32), less what headers take.
    assert comm["ratio"] == comm["exact_bytes"] / comm["wire_bytes_sent"]
    assert 4 < comm["ratio"] < 24 / (4 + 20 / 32)
    assert optimizer["decision"] == "1bit: the variance is frozen"
    assert optimizer["steps"] == 24 and optimizer["memory"] > 16 * elements
    assert 0 < comm["encode_ns"] and 0 < comm["decode_ns"] and 0 < comm["average_ns"]
    assert 0 < comm["waiting_ns"] < comm["compressed_ns"]
    assert all(0 < norm < 1e3 for norm in optimizer["residual_norm"])
    for words in ("rank 0 of 2", "calls in 1 bit took", "norm of the residuals", "20 calls in 1 bit", "OneBitLamb 'the model's': step 24, 0 skipped", "1bit: the variance"):
        assert words in text


@pytest.mark.parametrize(
    "kind, arguments, words",
    [
        ("Adam", {}, "exact: Adam exchanges gradients in full precision"),
        ("OneBitAdam", {"freeze_step": "auto"}, "exact: warm-up, until the variance is stable (freeze_step auto)"),
        ("ZeroOneAdam", {"var_freeze_step": 7}, "1bit and exact until var_freeze_step 7"),
    ],
)
def test_each_kind_gives_its_reason(kind, arguments, words):
    def body(rank):
        optimizer = getattr(onebit.torch, kind)(model().parameters(), **arguments)
        return optimizer.decision()

    assert ranks.run(2, body)[0] == words
    assert ranks.run(1, body) == ["no exchange: there is one rank"]


def test_an_optimizer_says_what_its_steps_have_sent_of_its_communicators_bytes():
    def body(rank):
        network = model(width=512)
        optimizer = onebit.torch.OneBitAdam(network.parameters(), freeze_step=2, comm=onebit.torch.init(name="three"))
        train(network, optimizer, rank, 12)
        optimizer.comm.allreduce(torch.ones(1000))
        return onebit.torch.report().as_dict(), str(onebit.torch.report()), sum(each.numel() for each in network.parameters())

    for found, text, elements in ranks.run(2, body):
        (comm,), (optimizer,) = found["communicators"], found["optimizers"]
        assert optimizer["carrier"] == "onebit" and "over communicator 'three'" in text and "NCCL" not in text
        assert 2 * 4 * elements <= optimizer["full_bytes"] < 2 * 4 * elements + 4000
        assert 10 * elements / 8 < optimizer["compressed_bytes"] < 10 * (elements / 8 + 1000)
        assert optimizer["fp32_bytes"] == 12 * 4 * elements
        assert optimizer["full_bytes"] + optimizer["compressed_bytes"] < comm["wire_bytes_sent"] - 4000


def test_what_is_closed_is_in_the_report_no_more():
    def body(rank):
        network = model()
        first = onebit.torch.Adam(network.parameters(), name="first")
        second = onebit.torch.Adam(model().parameters(), name="second", comm=onebit.torch.init(name="other"))
        train(network, first, rank, 1)
        first.close()
        half = str(onebit.torch.report())
        first.comm.close()
        second.comm.close()
        return half, str(onebit.torch.report())

    half, after = ranks.run(1, body)[0]
    assert "second" in half and "first" not in half
    assert after == "onebit: nothing has been made yet"


def test_a_failure_is_in_the_report():
    def body(rank):
        comm = onebit.torch.init()
        comm.abort()
        return str(onebit.torch.report())

    assert "unusable: ABORTED" in ranks.run(1, body)[0]
