"""Load results of hookscope: a capture from a file, features from a folder."""

from __future__ import annotations

import os
from typing import Any

from hookscope.results.features.features import Features
from hookscope.specs.output_path import names_folder


def load(path: str | os.PathLike[str]) -> Any:
    """Load a capture from a file, or features from a folder.

    Args:
        path: a file that ``capture``, ``grads``, ``step``, ``cam`` or ``Capture.save`` wrote; or
            the folder that ``extract`` wrote, or its address.

    Returns:
        For a file, a ``hookscope.Capture``: a mapping from key to tensor, read completely. For a
        folder, a ``hookscope.Features``, without torch: only the manifest is read.
        ``features["layer4"]`` is an array on disk that is indexed like a numpy array, and its
        ``.torch()`` returns tensors; ``features.inputs`` has the input of each row;
        ``features.dataset("layer4")`` is a ``torch.utils.data.Dataset``.

    Raises:
        ResultsFileError: there is no such file, it is damaged, or hookscope did not write it; or
            the manifest of the folder is damaged.
        RequestError: the folder has no features; or a path that ends in ``/`` does not exist.
        StoreError: the run that writes the folder is not finished.

    Example:
        >>> import hookscope
        >>> capture = hookscope.load("sample_models/five.safetensors")
        >>> capture["conv1/output"].shape
        torch.Size([1, 16, 8, 8])
        >>> features = hookscope.load("sample_models/features")
        >>> features["pool"].shape, features["fc"][[3, 5]].argmax(axis=1)
        ((10, 32, 4, 4), array([3, 5]))
    """
    if names_folder(path):
        return Features(path)
    from hookscope.hooks.capture import Capture

    return Capture.load(path)
