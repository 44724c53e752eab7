"""The named-module tree of a model, or the tree of the tensors in a file of weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from hookscope.api.weight_source import as_weights, label_of_weights
from hookscope.files.progress import Progress
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.patterns import as_texts
from hookscope.specs.weight_options import WEIGHT_OPTIONS, check_hash_options, check_model_options
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.stores.weights.weight_tree import WeightTree

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from hookscope.results.module_tree import ModuleTree
    from hookscope.stores.weights.weight_hashes import WeightHashes

    Module = torch.nn.Module | torch.export.ExportedProgram


class TreeOptions(TypedDict, total=False):
    """The keywords of ``tree`` that do not change the type of its result."""

    layers: str | Iterable[str]
    types: str | Iterable[str]
    depth: int | None
    leaves: bool
    shapes: bool
    shape: Sequence[int] | None
    model_args: Mapping[str, Any] | None
    method: str | None
    attn: str | None
    trust: bool
    onnx_optimize: str | None
    adapter: str | os.PathLike[str] | None
    progress: Progress | None


@overload
def tree(
    model: str | os.PathLike[str] | WeightSet | Module = ...,
    *,
    hash: Literal[True],
    **options: Unpack[TreeOptions],
) -> WeightHashes: ...
@overload
def tree(
    model: WeightSet, *, hash: Literal[False] = False, **options: Unpack[TreeOptions]
) -> WeightTree: ...
@overload
def tree(
    model: Module, *, hash: Literal[False] = False, **options: Unpack[TreeOptions]
) -> ModuleTree: ...
@overload
def tree(
    model: str | os.PathLike[str] = ...,
    *,
    hash: Literal[False] = False,
    **options: Unpack[TreeOptions],
) -> ModuleTree | WeightTree: ...
@overload
def tree(
    model: str | os.PathLike[str] | WeightSet | Module = ...,
    *,
    hash: bool,
    **options: Unpack[TreeOptions],
) -> ModuleTree | WeightTree | WeightHashes: ...
def tree(
    model: (
        str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    *,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    shapes: bool = False,
    shape: Sequence[int] | None = None,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    hash: bool = False,
    progress: Progress | None = None,
) -> ModuleTree | WeightTree | WeightHashes:
    """Return the named-module tree of a model, or the tree of the tensors in a file of weights.

    Args:
        model: the spec of a model, or a module; or weights: a file, a folder or an index of
            several, a part of a checkpoint (``file.pth#ema``), or the result of ``load``.
        layers: layer patterns; none means all. A leading ``!`` excludes. For weights, patterns of
            the names of tensors, or of what they begin with.
        types: class names or globs of them, such as ``Conv2d``.
        depth: the maximum number of parts of a name; 0 is the model itself.
        leaves: leaf modules only; of weights, tensors only.
        shapes: add output shapes, calls and FLOPs, from a pass on the meta device, or from a real
            run if the model cannot run there. The shapes are those of the first call; a note names
            those of later calls that differ.
        shape: shape of the input for that pass.
        model_args: keyword arguments for a class or factory.
        method: the method to run instead of ``forward``, of a model given by its spec.
        attn: how a ``hf:`` model computes attention, such as ``eager``, which shows its weights.
        trust: open an exported program (.pt2) even if it carries pickles that run code; of a
            pickled model, build it, which runs code, and take its state dict.
        onnx_optimize: how far onnxruntime may change the graph of an ONNX file: ``none`` (the
            default), ``basic``, ``extended`` or ``all``.
        hash: return the hashes of the architecture and of the weights instead. A model is loaded
            with its initial values.
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
    options = {
        **{"layers": layers, "types": types, "depth": depth is not None, "leaves": leaves},
        **{"shapes": shapes, "shape": shape, "model_args": model_args, "method": method},
        **{"attn": attn, "trust": trust, "onnx_optimize": onnx_optimize, "adapter": adapter},
    }
    chosen = [name for name, value in options.items() if value]
    if hash:
        check_hash_options(chosen)
    if label := label_of_weights(model):
        check_model_options(chosen, WEIGHT_OPTIONS, label)
    weights = as_weights(model, trust)
    if weights is not None:
        if not hash:
            return WeightTree.of(weights, as_texts(layers), depth, leaves)
        from hookscope.stores.weights.weight_hashes import hash_weights

        return hash_weights(weights, progress)
    from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request

    request = Request(
        "tree",
        ModelRequest(
            model,
            model_args=model_args,
            method=method,
            attn=attn,
            trust=trust,
            onnx_optimize=onnx_optimize,
            adapter=adapter,
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(shape=shape),
    )
    from hookscope.model_analysis.model_tree import describe_request, initial_weights

    if hash:
        from hookscope.stores.weights.weight_hashes import hash_weights

        return hash_weights(initial_weights(request), progress)
    return describe_request(request, shapes)
