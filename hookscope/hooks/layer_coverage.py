"""Which of the chosen layers ran, and the likely reason if one never ran.

A hook on a module that is never called records nothing, without an error. The causes are inferred
from the model's structure, so they are likely and not certain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import nn

from hookscope.hooks.layers import Layer, submodule
from hookscope.results.records import Coverage, ExecutedModule, UnexecutedModule

# By name: a module from a scripted file is of another class of the same name.
CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
OTHER_THREADS = "called only by threads that are not part of the recording"
UNEXPLAINED = "a branch not taken"  # begins the reason if no other applies


def summarize_coverage(
    model: nn.Module,
    layers: Sequence[Layer],
    calls: Mapping[nn.Module, int],
    elsewhere: Collection[nn.Module] = (),
) -> Coverage:
    """Divide ``layers`` into those that ran and those that did not."""
    order = {module: i for i, module in enumerate(calls)}
    ran = sorted((x for x in layers if calls.get(x.module)), key=lambda x: order[x.module])
    unused = [x for x in layers if not calls.get(x.module)]
    unused_names = {x.name for x in unused}
    causes = (
        OTHER_THREADS if x.module in elsewhere else _likely_cause(model, x, unused_names, calls)
        for x in unused
    )
    return Coverage(
        tuple(ExecutedModule(x.name, x.type, calls[x.module]) for x in ran),
        tuple(
            UnexecutedModule(x.name, x.type, cause) for x, cause in zip(unused, causes, strict=True)
        ),
    )


def _likely_cause(
    model: nn.Module, layer: Layer, unused: set[str], calls: Mapping[nn.Module, int]
) -> str:
    module, parent_name = layer.module, layer.name.rpartition(".")[0]
    if reason := getattr(module, "_hookscope_unavailable", ""):  # a part of an ONNX file
        return str(reason)
    if _is_a(module, *CONTAINERS):
        return "a container: its parent calls its children, never the container itself"
    parent = submodule(model, parent_name)
    if _is_a(parent, "MultiheadAttention"):
        return "attention passes its weights to a fused kernel instead of calling it"
    above = [name for name in ancestors(layer.name) if name in unused]
    if above and not _is_a(submodule(model, above[0]), *CONTAINERS):
        return f"it belongs to {above[0]}, which never ran"
    if _is_a(module, "Sequential") and not list(module.children()):
        return "an empty container"
    if _is_a(module, "Sequential") and any(map(calls.get, module.children())):
        return "a container: its parent calls its children one by one"
    if _is_a(parent, "TransformerEncoderLayer") and not model.training:
        return "the encoder layer used its fused fast path"
    if type(module).forward is nn.Module.forward:
        return "it has no forward: it only contains other modules, or tracing removed its code"
    mode = "train" if model.training else "eval"
    return (
        f"{UNEXPLAINED} in {mode} mode, or its parent calls .forward() or uses its weights directly"
    )


def _is_a(module: nn.Module | None, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(module).__mro__)


def ancestors(name: str) -> list[str]:
    """Return the names above ``name``, nearest last; the model itself is left out.

    Example:
        >>> ancestors("layer3.0.conv1")
        ['layer3', 'layer3.0']
    """
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
