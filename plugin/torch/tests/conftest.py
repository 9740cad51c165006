"""All tests: they find the helpers beside them, and ranks are forked from a process that has imported what they need."""

import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

with contextlib.suppress(ImportError):
    # PyTorch 2 imports this in the first zero_grad: seconds in each rank.
    import torch._dynamo  # noqa: F401
