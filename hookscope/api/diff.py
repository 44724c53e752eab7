"""Compare two captures, runs, sets of weights, features folders, or models on one input."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hookscope.api.public import Given, public
from hookscope.api.weight_source import as_weights, check_no_state_dict
from hookscope.file_analysis.capture_comparator import Comparator, compare_captures
from hookscope.file_analysis.features_diff import FeaturesDiff, compare_features
from hookscope.file_analysis.record_matches import LayerFilter
from hookscope.file_analysis.runs.run_comparator import compare_runs
from hookscope.file_analysis.runs.run_diff import RunDiff, RunDiffs
from hookscope.file_analysis.weights.weight_diff import WeightDiff
from hookscope.files.progress import Progress
from hookscope.results.diff_result import Diff
from hookscope.specs.diff_request import (
    RUN_OPTIONS,
    DiffRequest,
    RunDiffOptions,
    are_features,
    are_runs,
    check_more_runs,
    check_run_diff_options,
)
from hookscope.specs.weight_options import (
    DIFF_WEIGHT_OPTIONS,
    INITIAL_OPTIONS,
    InitialWeights,
    WeightDiffOptions,
    check_weight_diff_options,
)
from hookscope.stores.weights.open_weights import weight_sides
from hookscope.stores.weights.weight_set import WeightSet

if TYPE_CHECKING:
    import torch

    Side = str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram


@public
def diff(
    a: Side,
    b: Side,
    *more: str | os.PathLike[str],
    options: Given[DiffRequest],
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
    chosen = options.chosen
    sides: Any = (a, b)
    for side in sides:
        check_no_state_dict(side)
    check_more_runs(a, b, more)
    if are_runs(a, b):
        check_run_diff_options(chosen)
        options_of_runs = RunDiffOptions(**options.part(*RUN_OPTIONS))
        diffs = [compare_runs(sides[0], other, options_of_runs) for other in (sides[1], *more)]
        return RunDiffs(tuple(diffs)) if more else diffs[0]
    if are_features(a, b):
        check_run_diff_options(chosen, "features folders")
        options_of_rows = RunDiffOptions(**options.part(*RUN_OPTIONS))
        return compare_features(sides[0], sides[1], options_of_rows, progress)
    are_weights = weight_sides(a, b)
    if any(are_weights):
        check_weight_diff_options(chosen, not all(are_weights))
        weight_options = WeightDiffOptions(**options.part(*DIFF_WEIGHT_OPTIONS))
        side = are_weights.index(False) if False in are_weights else None
        if side is not None:  # checked before a file is opened, which may run code
            model = InitialWeights(sides[side], side, **options.part(*INITIAL_OPTIONS))
        pairs = zip(sides, are_weights, strict=True)
        sides = [as_weights(one, options["trust"]) if own else one for one, own in pairs]
        if side is None:
            from hookscope.file_analysis.weights.weight_comparison import compare_weights

            return compare_weights(sides[0], sides[1], weight_options, progress)
        from hookscope.model_analysis.diff.model_comparison import compare_with_model

        return compare_with_model(sides[0], sides[1], model, weight_options, progress)
    request = options.make(a=a, b=b)
    if not request.compares_captures:
        from hookscope.model_analysis.diff.model_comparison import compare_models

        return compare_models(request)
    selection = request.selection
    return compare_captures(
        sides,
        request.map or {},
        Comparator(request.atol, request.rtol, request.equal_nan),
        LayerFilter(tuple(selection.layers), tuple(selection.types), request.depth),
        tuple(request.kinds),
        request.strict,
    )
