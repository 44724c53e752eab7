"""The named-module tree of a model, or the tree of the tensors in a file of weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

from hookscope.api.public import Given, Only, public
from hookscope.api.weight_source import as_weights, label_of_weights
from hookscope.files.progress import Progress
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.patterns import as_texts
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.weight_options import (
    TREE_WEIGHT_OPTIONS,
    TreeOptions,
    check_hash_options,
    check_model_options,
)
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.stores.weights.weight_tree import WeightTree

if TYPE_CHECKING:
    import torch

    from hookscope.results.module_tree import ModuleTree
    from hookscope.stores.weights.weight_tree import WeightHashes

    Module = torch.nn.Module | torch.export.ExportedProgram


@overload
def tree(
    model: str | os.PathLike[str] | WeightSet | Module = ...,
    *,
    hash: Literal[True],
    **options: Any,
) -> WeightHashes: ...
@overload
def tree(model: WeightSet, *, hash: Literal[False] = False, **options: Any) -> WeightTree: ...
@overload
def tree(model: Module, *, hash: Literal[False] = False, **options: Any) -> ModuleTree: ...
@overload
def tree(
    model: str | os.PathLike[str] = ...,
    *,
    hash: Literal[False] = False,
    **options: Any,
) -> ModuleTree | WeightTree: ...
@overload
def tree(
    model: str | os.PathLike[str] | WeightSet | Module = ...,
    *,
    hash: bool,
    **options: Any,
) -> ModuleTree | WeightTree | WeightHashes: ...
@public
def tree(
    model: (
        str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    *,
    layers: Given[LayerSelection],
    options: TreeOptions,
    input: Annotated[InputRequest, Only("shape")],
    loading: Annotated[
        Given[ModelRequest],
        Only("model_args", "method", "attn", "trust", "onnx_optimize", "adapter"),
    ],
    progress: Progress | None = None,
) -> ModuleTree | WeightTree | WeightHashes:
    """Return the named-module tree of a model, or the tree of the tensors in a file of weights.

    Args:
        model: the spec of a model, or a module; or weights: a file, a folder or an index of
            several, a part of a checkpoint (``file.pth#ema``), or the result of ``load``.
        layers: layer patterns; none means all. A leading ``!`` excludes. For weights, patterns of
            the names of tensors, or of what they begin with.
        depth: the maximum number of parts of a name; 0 is the model itself.
        leaves: leaf modules only; of weights, tensors only.
        shape: shape of the input for that pass.
        trust: open an exported program (.pt2) even if it carries pickles that run code; of a
            pickled model, build it, which runs code, and take its state dict.
        progress: called with the bytes hashed and the total.

    Returns:
        A ``ModuleTree``; for weights, a ``WeightTree``; with ``hash``, ``WeightHashes``. Files of
        weights are read without torch, unless ``trust`` is given.

    Raises:
        ModelError: no such model.
        RequestError: a live model, or weights, are given with an option for models given by name;
            or there is no such part of a checkpoint.
        LayerError: a pattern matches nothing.
        WeightsFileError: a file of weights is damaged.
        ForwardError: the pass for ``shapes`` failed; its ``tree`` has the modules that ran before.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", layers=["layer1.0.*"], types=["Conv2d"])
        >>> [(node.name, node.parameters) for node in tree.nodes]
        [('layer1.0.conv1', 36864), ('layer1.0.conv2', 36864)]
        >>> tree = hookscope.tree("sample_models/digits.safetensors", depth=1)
        >>> [(node.name, node.parameters) for node in tree.nodes]
        [('.', 9930), ('conv1', 160), ('conv2', 4640), ('fc', 5130)]
    """
    shown = {"shapes": options.shapes, "shape": input.shape}
    chosen = [*layers.chosen, *(name for name in shown if shown[name]), *loading.chosen]
    if options.hash:
        check_hash_options(chosen)
    if label := label_of_weights(model):
        check_model_options(chosen, TREE_WEIGHT_OPTIONS, label)
    weights = as_weights(model, loading["trust"])
    if weights is not None:
        if not options.hash:
            return WeightTree.of(
                weights, as_texts(layers["layers"]), **layers.part("depth", "leaves")
            )
        from hookscope.stores.weights.weight_tree import hash_weights

        return hash_weights(weights, progress)
    request = Request("tree", loading.make(model=model), layers.make(), input)
    from hookscope.model_analysis.model_tree import describe_request, initial_weights

    if options.hash:
        from hookscope.stores.weights.weight_tree import hash_weights

        return hash_weights(initial_weights(request), progress)
    return describe_request(request, options.shapes)
