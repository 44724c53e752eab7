"""Compare two captures, runs, sets of weights, features folders, or models on one input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookscope.api.weight_source import as_weights, check_no_state_dict
from hookscope.file_analysis.captures.comparator import Comparator, compare_captures
from hookscope.file_analysis.captures.record_matches import LayerFilter
from hookscope.file_analysis.features_diff import FeaturesDiff, compare_features
from hookscope.file_analysis.runs.run_comparator import compare_runs
from hookscope.file_analysis.runs.run_diff import RunDiff, RunDiffs
from hookscope.file_analysis.weights.weight_diff import WeightDiff
from hookscope.files.progress import Progress
from hookscope.results.diff_result import Diff
from hookscope.specs.diff_request import (
    DiffRequest,
    RunDiffOptions,
    are_features,
    are_runs,
    check_more_runs,
    check_run_diff_options,
)
from hookscope.specs.weight_diff_options import (
    InitialWeights,
    WeightDiffOptions,
    check_weight_diff_options,
)
from hookscope.stores.weights.open_weights import weight_sides
from hookscope.stores.weights.weight_set import WeightSet

if TYPE_CHECKING:
    import torch

    Side = str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram


def diff(
    a: Side,
    b: Side,
    *more: str | os.PathLike[str],
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
    tokenizer: str | os.PathLike[str] | None = None,
    chat: bool = False,
    weights: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    rename: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    method: str | Sequence[str] = (),
    attn: str | Sequence[str] = (),
    onnx_optimize: str | Sequence[str] = (),
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    trust: bool = False,
    seed: int = 0,
    dtype: str | Sequence[str] = (),
    device: str | Sequence[str] = (),
    train: bool = False,
    progress: Progress | None = None,
) -> Diff | RunDiff | RunDiffs | WeightDiff | FeaturesDiff:
    """Compare two captures, runs, sets of weights, features folders, or models on one input.

    Two files are read without torch, one block of each tensor at a time. Two models first run once
    each, then in lockstep, so that memory needs to hold only about one tensor of each. The input is
    built once, for A. Tensors are matched by their keys, then by ``map``, then by order, module
    type and shape. A is the reference.

    Two folders of training runs that ``hookscope run`` wrote are compared without torch, at the
    steps that both have; the result is a ``RunDiff``, which names the first step and layer that
    differ. The keywords ``layers``, ``atol``, ``rtol`` and ``strict`` apply; the default
    tolerance is 0, because a repeated run has the same bits, and NaN in both is equal. With
    ``more`` runs, A is compared with each of them, and the result is a ``RunDiffs``.

    Two files of weights, folders of them or results of ``load`` are compared tensor by tensor,
    without torch; the result is a ``WeightDiff``, the most changed tensors first. If one side is a
    model, its parameters and buffers are compared with the weights, and no model runs. The
    keywords ``layers``, ``atol``, ``rtol``, ``strict``, ``rename`` and ``trust`` apply, and for a
    model ``weights``, ``partial``, ``model_args`` and ``seed``. The default tolerance is 0, NaN in
    both is equal, and a tensor of one side alone is a difference.

    Two features folders of the same inputs, which the hashes in them must show, are compared row by
    row without torch; the result is a ``FeaturesDiff``. The keywords ``layers``, ``atol``, ``rtol``
    and ``strict`` apply, with the defaults of weights; a key of one folder alone is a difference
    with ``strict``.

    Args:
        a: the file of a capture, the folder of a run, weights, the spec of a model, or a module.
        b: the capture, run, weights or model to compare with A.
        more: more folders of runs to compare with A, if it is one.
        layers: layer patterns, matched against names in A and in B; none means all.
        types: class names, or globs of them.
        depth: the maximum number of parts of a name.
        leaves: leaf modules only, for models.
        what: ``output``, ``input`` or both. None: outputs of models, all records of files.
        map: prefixes of names in A, each with its replacement in B.
        atol: tensors match if ``|a - b| <= atol + rtol * |a|`` everywhere. The default of each is
            that of ``torch.testing.assert_close`` for the less precise of the two dtypes; if one of
            the models is an ONNX file, a share of the entry (``rtol``) and of the largest entry of
            A's tensor (``atol``), such as 1e-4 for float32.
        rtol: the relative part of the tolerance.
        equal_nan: count NaN in both as equal.
        strict: count an unmatched tensor as a difference; of weights another dtype.
        input: as for ``capture``.
        shape: as for ``capture``; so are preprocess, size, mean, std, tokenizer, chat,
            partial and train.
        weights: as for ``capture``, for both models, or a pair for A and B. So are rename,
            model_args, method, attn, dtype and device. For weights, ``rename`` replaces prefixes of
            names in A, or in B if no name in A has them; for weights and a model, those of the
            weights.
        onnx_optimize: as for ``capture``, for an ONNX file or a pair for A and B.
        adapter: as for ``capture``, for both models, or a pair for A and B; ``none`` without one.
        seed: of random weights, noise and dropout, in both models.
        trust: as for ``capture``; of a pickled model, build it, which runs code, and compare its
            weights.
        progress: of features: called with the number of rows compared, over all keys, and the
            total; of weights: called with the number of megabytes compared and the total.

    Raises:
        RequestError: one is a capture and the other a model, no tensor in A matches one in B, no
            step is in both runs, or a spec, a pattern or a file is wrong.
        ResultsFileError: a file cannot be read.
        WeightsFileError: a file of weights cannot be read.
        ForwardError: a model raised; says which, and the layer.

    Example:
        >>> import hookscope
        >>> found = hookscope.diff(
        ...     "resnet18", "resnet18", dtype=["float32", "float64"], shape=(1, 3, 64, 64)
        ... )
        >>> len(found.rows), found.same, found.rows[0].dtypes
        (76, True, ('float32', 'float64'))
    """
    options = {
        **{"types": types, "depth": depth is not None, "leaves": leaves, "what": what},
        **{"map": map, "equal_nan": equal_nan, "input": input is not None, "shape": shape},
        **{"preprocess": preprocess, "size": size, "mean": mean, "std": std},
        **{"tokenizer": tokenizer, "chat": chat},
        **{"weights": weights, "rename": rename, "partial": partial, "method": method},
        **{"model_args": model_args, "attn": attn, "trust": trust, "seed": seed},
        **{"dtype": dtype, "device": device, "train": train, "onnx_optimize": onnx_optimize},
        **{"adapter": adapter},
    }
    chosen = [name for name, value in options.items() if value]
    sides: Any = (a, b)
    for side in sides:
        check_no_state_dict(side)
    check_more_runs(a, b, more)
    if are_runs(a, b):
        check_run_diff_options(chosen)
        options_of_runs = RunDiffOptions(layers, atol, rtol, strict)
        diffs = [compare_runs(sides[0], other, options_of_runs) for other in (sides[1], *more)]
        return RunDiffs(tuple(diffs)) if more else diffs[0]
    if are_features(a, b):
        check_run_diff_options(chosen, "features folders")
        options_of_rows = RunDiffOptions(layers, atol, rtol, strict)
        return compare_features(sides[0], sides[1], options_of_rows, progress)
    are_weights = weight_sides(a, b)
    if any(are_weights):
        check_weight_diff_options(chosen, not all(are_weights))
        weight_options = WeightDiffOptions(layers, atol, rtol, strict, rename)
        side = are_weights.index(False) if False in are_weights else None
        if side is not None:  # checked before a file is opened, which may run code
            model = InitialWeights(sides[side], side, weights, partial, model_args, seed, trust)
        pairs = zip(sides, are_weights, strict=True)
        sides = [as_weights(one, trust) if own else one for one, own in pairs]
        if side is None:
            from hookscope.file_analysis.weights.weight_comparison import compare_weights

            return compare_weights(sides[0], sides[1], weight_options, progress)
        from hookscope.model_analysis.diff.initial_weights import compare_with_model

        return compare_with_model(sides[0], sides[1], model, weight_options, progress)
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
        tokenizer=tokenizer,
        chat=chat,
        weights=weights,
        rename=rename,
        partial=partial,
        model_args=model_args,
        method=method,
        attn=attn,
        onnx_optimize=onnx_optimize,
        adapter=adapter,
        trust=trust,
        seed=seed,
        dtype=dtype,
        device=device,
        train=train,
    )
    if not request.compares_captures:
        from hookscope.model_analysis.diff.model_comparison import compare_models

        return compare_models(request)
    selection = request.selection
    layer_filter = LayerFilter(tuple(selection.layers), tuple(selection.types), depth)
    comparator = Comparator(atol, rtol, equal_nan)
    kinds = tuple(request.kinds)
    return compare_captures(sides, map or {}, comparator, layer_filter, kinds, strict)
