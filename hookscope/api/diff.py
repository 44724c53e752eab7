"""Compare two captures, or two models on one input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookscope.results.diff.comparator import Comparator, compare_captures
from hookscope.results.diff.diff_result import Diff
from hookscope.results.diff.record_matches import LayerFilter
from hookscope.specs.diff_request import DiffRequest

if TYPE_CHECKING:
    import torch

    Side = str | os.PathLike[str] | torch.nn.Module | torch.export.ExportedProgram


def diff(
    a: Side,
    b: Side,
    *,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    what: str | Iterable[str] | None = None,
    map: Mapping[str, str] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    equal_nan: bool = False,
    strict: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    rename: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    method: str | Sequence[str] = (),
    attn: str | Sequence[str] = (),
    trust: bool = False,
    seed: int = 0,
    dtype: str | Sequence[str] = (),
    device: str | Sequence[str] = (),
    train: bool = False,
) -> Diff:
    """Compare two captures, or two models on one input, tensor by tensor.

    Two files are read without torch, one block of each tensor at a time. Two models first run once
    each, then in lockstep, so that memory needs to hold only about one tensor of each. The input is
    built once, for A. Tensors are matched by their keys, then by ``map``, then by order, module
    type and shape. A is the reference.

    Args:
        a: the file of a capture, the spec of a model, or a module.
        b: the capture or model to compare with A.
        layers: layer patterns, matched against names in A and in B; none means all.
        types: class names, or globs of them.
        depth: the maximum number of parts of a name.
        leaves: leaf modules only, for models.
        what: ``output``, ``input`` or both. None: outputs of models, all records of files.
        map: prefixes of names in A, each with its replacement in B.
        atol: tensors match if ``|a - b| <= atol + rtol * |a|`` everywhere. The default of each is
            that of ``torch.testing.assert_close`` for the less precise of the two dtypes.
        rtol: the relative part of the tolerance.
        equal_nan: count NaN in both as equal.
        strict: count an unmatched tensor as a difference.
        input: as for ``capture``.
        shape: as for ``capture``; so are preprocess, size, mean, std, partial, trust and train.
        weights: as for ``capture``, for both models, or a pair for A and B. So are rename,
            model_args, method, attn, dtype and device.
        seed: of random weights, noise and dropout, in both models.

    Raises:
        RequestError: one is a file and the other a model, no tensor in A matches one in B, or a
            spec, a pattern or a file is wrong.
        ResultsFileError: a file cannot be read.
        ForwardError: a model raised; says which, and the layer.

    Example:
        >>> import hookscope
        >>> found = hookscope.diff(
        ...     "resnet18", "resnet18", dtype=["float32", "float64"], shape=(1, 3, 64, 64)
        ... )
        >>> len(found.rows), found.same, found.rows[0].dtypes
        (76, True, ('float32', 'float64'))
    """
    request = DiffRequest(
        a,
        b,
        layers=layers,
        types=types,
        depth=depth,
        leaves=leaves,
        what=what,
        map=map,
        atol=atol,
        rtol=rtol,
        equal_nan=equal_nan,
        strict=strict,
        input=input,
        shape=shape,
        preprocess=preprocess,
        size=size,
        mean=mean,
        std=std,
        weights=weights,
        rename=rename,
        partial=partial,
        model_args=model_args,
        method=method,
        attn=attn,
        trust=trust,
        seed=seed,
        dtype=dtype,
        device=device,
        train=train,
    )
    if not request.compares_captures:
        from hookscope.analysis.diff.model_comparison import compare_models

        return compare_models(request)
    files: Any = (a, b)
    selection = request.selection
    layer_filter = LayerFilter(tuple(selection.layers), tuple(selection.types), depth)
    comparator = Comparator(atol, rtol, equal_nan)
    kinds = tuple(request.kinds)
    return compare_captures(files, map or {}, comparator, layer_filter, kinds, strict)
