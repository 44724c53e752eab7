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
    """
    whole = score_of(values).detach().cpu().double()
    for number, region in enumerate(regions):
        occluded = values.detach().clone()
        occluded[region] = baseline[region]
        yield whole - score_of(occluded).detach().cpu().double()
        if progress is not None:
            progress(number + 1, len(regions))
