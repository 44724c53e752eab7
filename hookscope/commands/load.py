"""Load a capture or weights from a file, features, a training run or weights from a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hookscope.commands.subject import as_weights, check_trust
from hookscope.files.output_path import is_run_folder, names_folder
from hookscope.stores.features.features import Features
from hookscope.stores.runs.rank_runs import open_run
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.stores.weights.weight_set import WeightSet

if TYPE_CHECKING:  # a capture needs torch
    from hookscope.hooks.capture import Capture


def load(
    path: str | os.PathLike[str], *, trust: bool = False
) -> Capture | Features | TrainingRun | WeightSet:
    """Load a capture or weights from a file, or features, a training run or weights from a folder.

    Args:
        path: a file that ``capture``, ``grads``, ``step``, ``cam`` or ``Capture.save`` wrote; or
            the folder that ``extract`` or ``hookscope run`` wrote, or the address of features; or
            weights: a file, a folder, an index, or a part of a checkpoint (``file.pth#ema``).
        trust: of a pickled model, build it, which runs code, and return its state dict.

    Returns:
        For a file, a ``hookscope.Capture``: a mapping from key to tensor, read completely. For a
        folder, a ``hookscope.Features``, without torch: only the manifest is read.
        ``features["layer4"]`` is an array on disk that is indexed like a numpy array, and its
        ``.torch()`` returns tensors; ``features.inputs`` has the input of each row;
        ``features.dataset("layer4")`` is a ``torch.utils.data.Dataset``. For the folder of a
        training run, a ``TrainingRun``, or a ``RankRuns`` of all its ranks, also without torch and
        while the run goes on: ``run.curve("conv1/weight.grad", "norm")`` has ``steps`` and
        ``values``.

        For weights, a ``WeightSet``, without torch: only headers are read, and no code of a file
        is run unless ``trust`` is given. ``weights.tensors`` has the name, dtype and shape of each
        tensor, and ``weights["fc.weight"]`` reads its values as an array of numpy.

    Raises:
        ResultsFileError: there is no such file, it is damaged, or hookscope did not write it; or
            the manifest of the folder, or a file of the run, is damaged.
        RequestError: the folder has no features; a path that ends in ``/`` does not exist; or
            ``trust`` is given for a result.
        StoreError: the run that writes the folder is not finished.
        WeightsFileError: a file of weights is damaged, or has no tensors.
        ModelError: with ``trust``, the code of the file raised.

    Example:
        >>> import hookscope
        >>> capture = hookscope.load("sample_models/five.safetensors")
        >>> capture["conv1/output"].shape
        torch.Size([1, 16, 8, 8])
        >>> features = hookscope.load("sample_models/features")
        >>> features["pool"].shape, features["fc"][[3, 5]].argmax(axis=1)
        ((10, 32, 4, 4), array([3, 5]))
        >>> run = hookscope.load("sample_models/run")
        >>> run.curve("fc2/weight.grad", "norm").steps
        array([ 0,  1,  2,  4,  8, 16, 32])
        >>> weights = hookscope.load("sample_models/digits.safetensors")
        >>> weights.tensors["fc.weight"].shape, weights["fc.bias"].dtype
        ((10, 512), dtype('float32'))
    """
    if trust:
        check_trust(path)
    if is_run_folder(path):
        return open_run(path)
    if (weights := as_weights(path, trust)) is not None:
        return weights
    if names_folder(path):
        return Features(path)
    from hookscope.hooks.capture import Capture

    return Capture.load(path)
