"""Rank the inputs of a features folder by the activation of units, without torch."""

from __future__ import annotations

import os

from hookscope.api.public import public
from hookscope.file_analysis.top_inputs import TopInputs
from hookscope.file_analysis.top_run import rank_inputs
from hookscope.files.progress import Progress
from hookscope.inputs.text_tables import StoredTexts
from hookscope.specs.features_options import TopOptions
from hookscope.stores.features.features import Features


@public
def top(
    features: str | os.PathLike[str],
    *,
    options: TopOptions,
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
    folder = Features(features)
    texts = StoredTexts(folder.manifest["inputs"]["specs"])
    return rank_inputs(folder, options, texts, progress)
