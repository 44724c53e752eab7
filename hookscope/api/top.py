"""Rank the inputs of a features folder by the activation of units, without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hookscope.file_analysis.units.top_inputs import TopInputs
from hookscope.file_analysis.units.top_run import rank_inputs
from hookscope.files.progress import Progress
from hookscope.inputs.text_tables import StoredTexts
from hookscope.specs.top_options import MAX, TopOptions
from hookscope.stores.features.features import Features


def top(
    features: str | os.PathLike[str],
    *,
    layer: str | None = None,
    units: Sequence[int] | None = None,
    direction: Any = None,
    by: str = MAX,
    count: int = 8,
    dim: int | None = None,
    progress: Progress | None = None,
) -> TopInputs:
    """Find the inputs that excite each unit, channel or direction of a layer most and least.

    Rows are read once, in blocks; memory does not grow with their number. If a row has positions,
    as a map or tokens have, the activation of a channel is its largest value or its mean over them.
    For texts, the token with the largest value is named if rows are whole, or were reduced with
    ``max`` or ``topk:K:tokens``. Texts are read from their files.
    Quantiles of all activations are exact up to 128 MB of activations. Beyond, they come from a
    histogram of 65536 bins, made by a second pass.

    Args:
        features: a folder that ``extract`` wrote, or its address.
        layer: a layer or a key; None if the folder has only one.
        units: numbers of units or channels; None for the first 16.
        direction: in place of units: an array, or a ``.npy`` file of one, of shape (channels,) or
            (n, channels). The activation is the dot product.
        by: ``max`` or ``mean`` over positions.
        count: inputs of each end.
        dim: the dimension of the channels in one row; None to infer it from the layer.
        progress: called with the number of rows read, and the total.

    Raises:
        RequestError: there is no such layer or unit, several layers match, or a direction does not
            fit.
        ResultsFileError: a file of the folder is missing or damaged.

    Example:
        >>> import hookscope
        >>> found = hookscope.top("sample_models/features", layer="fc", units=[3], count=1)
        >>> found.units[0].most[0].name
        'sample_models/digits/3.png'
    """
    options = TopOptions(layer, units, direction, by, count, dim)
    folder = Features(features)
    texts = StoredTexts(folder.manifest["inputs"]["specs"])
    return rank_inputs(folder, options, texts, progress)
