"""onebit for PyTorch: optimizers that exchange one bit an element between ranks.

Start the script by torchrun, and::

    from onebit.torch import OneBitLamb
    model = torch.nn.parallel.DistributedDataParallel(model)  # or broadcast_parameters(model)
    optimizer = OneBitLamb(model.parameters(), lr=1e-3, freeze_step=1000)

    loss.backward()      # gradients stay each rank's own
    optimizer.step()     # averages them: in full until freeze_step, then in 1 bit

docs/pytorch.md has the rest.
"""

from onebit.errors import Code, OneBitError
from onebit.torch.data_parallel import keep_gradients_local
from onebit.torch.hook import HookState, ddp_hook
from onebit.torch.group import broadcast_parameters, default_communicator, init
from onebit.torch.kinds import Adam, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam, from_deepspeed_config
from onebit.torch.optimizer import OneBitOptimizer
from onebit.torch.reporting import Report, report

# DeepSpeed's spelling.
OnebitAdam = OneBitAdam
OnebitLamb = OneBitLamb

__all__ = [
    "Adam",
    "Code",
    "HookState",
    "Lamb",
    "OneBitAdam",
    "OneBitError",
    "OneBitLamb",
    "OneBitOptimizer",
    "OnebitAdam",
    "OnebitLamb",
    "Report",
    "ZeroOneAdam",
    "broadcast_parameters",
    "ddp_hook",
    "default_communicator",
    "from_deepspeed_config",
    "init",
    "keep_gradients_local",
    "report",
]
