"""Open the features of a whole dataset, without loading torch."""

from __future__ import annotations

import os

from hookscope.results.features.features import Features


def open(features: str | os.PathLike[str]) -> Features:
    """Open the folder that ``hookscope.extract`` or ``hookscope extract`` wrote.

    Nothing is read but the manifest: rows are read when they are asked for, and only those.

    Args:
        features: the folder, or its address.

    Returns:
        The features: ``features["layer4"]`` is an array that lies on disk, and is indexed as
        numpy's are; ``.torch()`` of it gives tensors; ``features.inputs`` tells where each row came
        from; ``features.dataset("layer4")`` is a ``torch.utils.data.Dataset``.

    Raises:
        RequestError: there is no such folder, or no features in it.
        ResultsFileError: the manifest is damaged.
        StoreError: the run that makes it is not finished.

    Example:
        >>> import hookscope
        >>> features = hookscope.open("sample_models/features")
        >>> features["pool"].shape, features["fc"][[3, 5]].argmax(axis=1)
        ((10, 32, 4, 4), array([3, 5]))
    """
    return Features(features)
