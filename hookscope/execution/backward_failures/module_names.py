"""Names for the modules and parameters that a story mentions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hookscope.files.words import shape_text


class ModuleNames:
    """The names of modules; that of a module without one is its class.

    Attributes:
        inputs: the tensors of the model's input that get a gradient.
    """

    def __init__(self, names: Mapping[nn.Module, str], inputs: Sequence[Tensor] = ()) -> None:
        self._names, self.inputs = names, inputs

    def __call__(self, module: nn.Module) -> str:
        """Return the name of a module."""
        return self._names.get(module) or type(module).__name__

    def of_parameter(self, parameter: Tensor) -> str:
        """Return the name of a parameter; its shape if no module has it."""
        for module, name in self._names.items():
            for own, value in module._parameters.items():
                if value is parameter:
                    return f"{name}.{own}" if name else own
        return f"a tensor of {shape_text(parameter.shape, 'one number')}"


def names_in_variables(namespaces: Sequence[dict[str, Any]]) -> ModuleNames:
    """Return names for the modules that variables hold, and for those in them: ``net.fc``."""
    names: dict[nn.Module, str] = {}
    for variables in namespaces:
        for variable, value in list(variables.items()):
            held = {variable: value}
            if variable == "self":
                held = dict(getattr(value, "__dict__", {}))
                held |= held.get("_modules") or {}
            for name, model in held.items():
                if isinstance(model, nn.Module) and not name.startswith("_"):
                    for inner, module in model.named_modules():
                        names.setdefault(module, f"{name}.{inner}" if inner else name)
    return ModuleNames(names)
