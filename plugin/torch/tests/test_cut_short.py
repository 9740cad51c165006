"""Files and state_dicts of several steps, as a kill between two saves leaves them, are never mixed."""

from __future__ import annotations

import shutil

import torch

import ranks
from models import flat, model, train
from onebit.torch import OneBitLamb

torch.set_num_threads(1)


def test_two_steps_are_refused_with_the_step_of_each_rank_and_the_one_asked_for_is_loaded(tmp_path):
    def body(rank):
        network = model()
        optimizer = OneBitLamb(network.named_parameters(), freeze_step=2)
        for end in (3, 5):
            train(network, optimizer, rank, end, optimizer.info().steps + 1)
            optimizer.save(tmp_path / str(end))
        optimizer.comm.barrier()
        if rank == 0:  # as if rank 1 had been killed before its second save
            shutil.copytree(tmp_path / "5", tmp_path / "mixed")
            name = "optimizer.rank-1-of-2.optimizer"
            shutil.copyfile(tmp_path / "3" / name, tmp_path / "mixed" / name)
        optimizer.comm.barrier()
        before = (flat(network), optimizer.info())
        said = [ranks.error_of(lambda: optimizer.load(tmp_path / "mixed"))]
        said.append(ranks.error_of(lambda: optimizer.load(tmp_path / "3", step=5)))
        assert (flat(network), optimizer.info()) == before
        optimizer.load(tmp_path / "3", step=3)
        assert optimizer.info().steps == 3
        # Own state_dicts of different steps.
        state = optimizer.state_dict()
        optimizer.load(tmp_path / "5")
        said.append(ranks.error_of(lambda: optimizer.load_state_dict(state if rank else optimizer.state_dict())))
        return said

    for mixed, other, dicts in ranks.run(2, body):
        assert "step 3 of rank 1, step 5 of rank 0" in mixed and "the parameter groups there are of step 5" in mixed
        assert "the parameter groups of step 3, not of step 5" in other
        assert "different moments" in dicts and "step 3 of 2 ranks" in dicts and "step 5 of 2 ranks" in dicts
