"""The words to choose among when a model is run, for the command line and for Python alike."""

from __future__ import annotations

DEFAULT_MODEL = "resnet18"
DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda", "mps", "auto")

# When a hook of the user's own runs. The later three need a backward pass.
FORWARD, FORWARD_PRE = "forward", "forward_pre"
BACKWARD, BACKWARD_PRE, ON_TENSOR = "backward", "backward_pre", "tensor"
GRADIENT_HOOKS = (BACKWARD, BACKWARD_PRE, ON_TENSOR)
HOOK_KINDS = (FORWARD, FORWARD_PRE, *GRADIENT_HOOKS)
