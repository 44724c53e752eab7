"""Items of a Dataset, and the batches made of them, as the arguments of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hookscope.inputs.arrays import tensor_of
from hookscope.sources.loaded import Recipe

log = logging.getLogger("hookscope")


def is_dataset(found: Any) -> bool:
    """Whether something is a Dataset, be it in all but name, or a DataLoader."""
    if isinstance(found, DataLoader | IterableDataset):
        return True
    sized = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    plain = isinstance(found, Tensor | np.ndarray | list | tuple | Mapping | str)
    return sized and not plain and not isinstance(found, type | torch.nn.Module)


def pictured(item: Any, recipe: Callable[[], tuple[int, Recipe]]) -> Any:
    """Return an item with its images made tensors, as those in files are.

    Args:
        item: what a Dataset gives.
        recipe: gives the channels and the recipe of images; called only where there is one.
    """
    if isinstance(item, Image):
        channels, found = recipe()
        return found.run(item.convert("RGB" if channels == 3 else "L"))
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        return type(item)(pictured(part, recipe) for part in item)
    if isinstance(item, Mapping):
        return {key: pictured(part, recipe) for key, part in item.items()}
    return item


def is_labelled(batch: Any, one: bool) -> bool:
    """Whether something is a pair whose second half is a label, for the model needs ``one``."""
    return (
        one
        and isinstance(batch, list | tuple)
        and not hasattr(batch, "_fields")
        and (len(batch) == 2)
    )


def tell_of_labels() -> None:
    """Say that labels are left out."""
    log.info("input: the second of each pair is taken for a label and left out")


def arguments_of(batch: Any, word: str) -> Any:
    """Return the call value that a batch is; lists hold what tuples held."""
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return tuple(plain(item, word) for item in batch)
    return plain(batch, word)


def plain(value: Any, word: str) -> Any:
    """Return what a model takes for an argument."""
    if isinstance(value, np.ndarray):
        return tensor_of(value, word)
    return dict(value) if isinstance(value, Mapping) else value
