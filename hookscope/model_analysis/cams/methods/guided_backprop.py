"""Guided backpropagation: the gradient at the image through guided ReLUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.errors import RequestError
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.ops.op_names import plain_name
from hookscope.hooks.torch_state import FunctionMode
from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.cam_method import CamMethod, CamResult
from hookscope.model_analysis.cams.methods.saliency import channel_maximum

_RELU = "relu"
_OTHERS = (
    *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish"),
    *("prelu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softplus", "tanh"),
)


class GuidedBackprop(CamMethod):
    """Guided backpropagation.

    The map is max_c |g_c|, where g is the gradient of the target's score at the image with another
    derivative of the ReLU: it passes back relu(G) where its input was positive, and 0 elsewhere,
    for the gradient G at its output. c runs over the image's channels.

    J. T. Springenberg, A. Dosovitskiy, T. Brox, M. Riedmiller: Striving for Simplicity: The All
    Convolutional Net, 2015 (arXiv:1412.6806), section 3.4.
    """

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps from one run of the model.

        Raises:
            RequestError: no ReLU lies between the image and the score.
        """
        with guide_relus(inputs.prepared.module) as metadata:
            output, gradient = inputs.gradient_at(inputs.image)
        return CamResult(channel_maximum(gradient), output, attribution=gradient, metadata=metadata)


class _ActivationMode(TorchFunctionMode):
    """Guides every ReLU: a module, a function, or an operator of a scripted or exported model.

    ``ran`` counts the calls of each activation function by name, ``passed`` the calls that a
    gradient came back to.
    """

    def __init__(self, hooks: HookSet) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self._hooks = hooks

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the mode is off in here
        result = func(*args, **(kwargs or {}))
        name = plain_name(func).rstrip("_")
        if (name == _RELU or name in _OTHERS) and isinstance(result, Tensor):
            self.ran[name] += 1
            if result.requires_grad:
                # At the ReLU's output. The ReLU itself then sets the gradient to 0 where its
                # input was not positive.
                self._hooks.listen(result, partial(self._guide, name))
        return result

    def _guide(self, name: str, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        self.passed[name] += 1
        return grad.clamp(min=0) if name == _RELU else None


@signal_safe_contextmanager
def guide_relus(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Pass only positive gradients back through the ReLUs that run within the block.

    The parameters must be frozen in the block, so that gradients go from the score to the image
    only.
    """
    metadata: dict[str, Any] = {}
    with HookSet(model) as hooks:
        activations = _ActivationMode(hooks)
        with FunctionMode(activations):
            yield metadata
    passed = activations.passed
    others = {name: passed[name] for name in sorted(passed) if name != _RELU}
    metadata.update(relus=passed[_RELU], unguided=others)
    if metadata["relus"]:
        return
    ran = activations.ran[_RELU]
    why = "No ReLU ran in this model"
    if ran:
        why = f"No ReLU is between the image and the score ({ran} elsewhere)"
    names = ", ".join(f"{name} {count}" for name, count in others.items())
    raise RequestError(
        f"{why}{f', only other activations: {names}' if names else ''}.",
        "Guided backpropagation changes only ReLUs, so here it is the plain gradient. Use --by"
        " saliency for that, or --by integrated.",
    )
