"""Occlusion: the change of a score where a part of the input is replaced by a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from hookscope.files.progress import Progress


def occlusion_drops(
    score_of: Callable[[Tensor], Tensor],
    values: Tensor,
    baseline: Tensor,
    regions: Sequence[tuple[slice | int, ...]],
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """Yield the score of the input less that with one region of it from the baseline.

    M. Zeiler, R. Fergus: Visualizing and Understanding Convolutional Networks, 2013
    (arXiv:1311.2901), section 4.2.

    Args:
        score_of: returns the score of each row of an input, (N,).
        values: the input, (N, ...).
        baseline: of the same shape.
        regions: indices into the input, one run of the model each.
        progress: called with the number of regions done and that of all.

    Yields:
        (N,), float64, on the CPU, for each region.
    """
    whole = score_of(values).detach().cpu().double()
    for number, region in enumerate(regions):
        occluded = values.detach().clone()
        occluded[region] = baseline[region]
        yield whole - score_of(occluded).detach().cpu().double()
        if progress is not None:
            progress(number + 1, len(regions))
