"""The target of a loss: class indices or a tensor, from a text, an object or a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from hookscope.errors import LossError
from hookscope.files.file_types import TOO_LARGE, describe_file
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_or, shape_text
from hookscope.specs.losses import TARGET_SUFFIXES, TARGETS, check_target, is_target_file
from hookscope.specs.model_spec import end_sentence
from hookscope.stores.weights.zip_records import check_record_sizes
from hookscope.tensors.torch_release import READS_PICKLES, reads_pickles_safely, unsafe_pickle

_FILES = f"A target file is {join_or(TARGET_SUFFIXES)}"


@dataclass(frozen=True)
class Target:
    """A target for logits (N, C, ...): ``classes``, int64 (N, ...), or ``values`` as the logits."""

    text: str
    classes: Tensor | None = None
    values: Tensor | None = None

    def dense(self, logits: Tensor) -> Tensor:
        """Return the target in the shape of ``logits``; a class becomes one-hot."""
        if self.values is not None:
            return self.values
        assert self.classes is not None
        return torch.zeros_like(logits).scatter_(1, self.classes.unsqueeze(1), 1.0)


def resolve_target(target: Any, logits: Tensor, categories: Sequence[str] = ()) -> Target:
    """Return ``target`` for ``logits``, which have the classes as dimension 1."""
    logits = logits.detach()
    if isinstance(target, os.PathLike) or is_target_file(target):
        path = os.fspath(target)
        return _from_tensor(read_target(path), logits, path)
    if isinstance(target, Tensor | np.ndarray):
        return _from_tensor(torch.as_tensor(target), logits, "given tensor")
    if target == "argmax":
        predicted = logits.argmax(1)
        return Target(_argmax_text(predicted, categories), classes=predicted)
    if target == "uniform":
        count = logits.shape[1]
        return Target(f"uniform over {count} classes", values=torch.full_like(logits, 1 / count))
    parts = _split_targets(target, categories)
    indices = [_class_index(part, logits.shape[1], categories) for part in parts]
    if len(indices) not in (1, len(logits)):
        raise LossError(
            f"{len(indices)} targets do not fit a batch of {len(logits)}.",
            "Give one target for all rows, or one for each.",
        )
    rows = torch.tensor(indices, device=logits.device).expand(len(logits))
    shape = (len(logits), *logits.shape[2:])
    classes = rows.reshape(-1, *[1] * (logits.ndim - 2)).expand(shape)
    return Target(", ".join(_label(index, categories) for index in indices), classes=classes)


def target_for_function(target: Any, categories: Sequence[str] = ()) -> tuple[Any, str]:
    """Return ``target`` in the form that a custom loss gets, and its description.

    An index or a label becomes an int, several become an int64 tensor, the path of a file becomes
    the tensor in it. Other objects are passed on as they are.

    >>> target_for_function("3"), target_for_function("dog", ["cat", "dog"])
    ((3, '3'), (1, '1 (dog)'))
    >>> target_for_function("argmax")
    (None, '')
    """
    if isinstance(target, os.PathLike) or is_target_file(target):
        path = os.fspath(target)
        tensor = read_target(path)
        return tensor, f"{path} ({shape_text(tensor.shape, 'one number')})"
    if isinstance(target, str) and target == "argmax":
        return None, ""
    if isinstance(target, list | tuple) and target and all(type(n) is int for n in target):
        target = ",".join(map(str, target))
    if not isinstance(target, str):
        is_number = isinstance(target, int | float | None)
        return target, str(target) if is_number else f"given {type(target).__name__}"
    parts = _split_targets(target, categories)
    numeric = all(part.lstrip("+-").isdecimal() for part in parts)
    if target == "uniform" or not (numeric or categories):
        return target, target
    indices = [
        int(part)
        if part.lstrip("+-").isdecimal()
        else _index_of_label(part, len(categories), categories)
        for part in parts
    ]
    text = ", ".join(_label(index, categories) for index in indices)
    return (indices[0] if len(indices) == 1 else torch.tensor(indices)), text


def read_target(path: str) -> Tensor:
    """Read the one tensor in a ``.npy``, ``.safetensors``, ``.pt`` or ``.pth`` file."""
    check_target(path)
    kind, repair = describe_file(path)
    if kind in TOO_LARGE:
        raise LossError(f"The target file {path!r} is {kind}.", repair)
    if not path.lower().endswith((".npy", ".safetensors")) and not reads_pickles_safely():
        raise LossError(
            unsafe_pickle(path),
            f"Save it as .npy or .safetensors, or install torch {READS_PICKLES} or newer.",
        )
    try:
        if path.lower().endswith(".npy"):
            # Memory-mapped: numpy would otherwise allocate the size in the file's header.
            tensor: Any = torch.from_numpy(np.array(np.load(path, "r", allow_pickle=False)))
        elif path.lower().endswith(".safetensors"):
            tensor = load_file(path)
        else:
            check_record_sizes(path)
            tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # the readers raise many types for a damaged file
        why = str(exc).partition("\n")[0]
        raise LossError(
            f"The target file {path!r} cannot be read: {end_sentence(why)}",
            f"{_FILES} with one tensor of numbers, as numpy.save writes it.",
        ) from exc
    if isinstance(tensor, dict) and len(tensor) == 1:
        (tensor,) = tensor.values()
    if not isinstance(tensor, Tensor):
        count = f"{len(tensor)} entries" if isinstance(tensor, dict) else type(tensor).__name__
        raise LossError(
            f"The target file {path!r} contains {count}.", "It must contain one tensor."
        )
    return tensor


def _from_tensor(tensor: Tensor, logits: Tensor, text: str) -> Target:
    text = f"{text} ({shape_text(tensor.shape, 'one number')})"
    if tensor.is_floating_point():
        if tensor.shape not in (logits.shape, logits.shape[1:]):
            raise _shape_error(tensor, [tuple(logits.shape), tuple(logits.shape[1:])])
        values = tensor.to(logits.device, logits.dtype).expand(logits.shape)
        return Target(text, values=values)
    if tensor.is_complex():
        raise LossError("No loss accepts a complex target.", "Give real numbers or class indices.")
    wanted = (len(logits), *logits.shape[2:])
    classes = tensor.long()
    if classes.numel() == 1:
        classes = classes.reshape(()).expand(wanted)
    elif classes.shape == wanted[:1]:
        classes = classes.reshape(-1, *[1] * (logits.ndim - 2)).expand(wanted)
    elif classes.shape != wanted:
        raise _shape_error(tensor, [wanted, wanted[:1]])
    for index in (int(classes.min()), int(classes.max())):
        _check_range(index, logits.shape[1])
    return Target(text, classes=classes.to(logits.device))


def _shape_error(tensor: Tensor, wanted: Iterable[tuple[int, ...]]) -> LossError:
    shapes = " or ".join(shape_text(sizes) for sizes in dict.fromkeys(wanted))
    kind = "target" if tensor.is_floating_point() else "tensor of class indices"
    shape = shape_text(tensor.shape)
    return LossError(f"A {kind} of shape {shape} does not fit.", f"The output needs {shapes}.")


def _split_targets(target: Any, categories: Sequence[str]) -> list[Any]:
    """The targets in one text. A label may contain a comma."""
    if isinstance(target, list | tuple):
        return list(target)
    if isinstance(target, str) and target not in categories:
        return [part.strip() for part in target.split(",")]
    return [target]


def _class_index(part: Any, count: int, categories: Sequence[str]) -> int:
    if isinstance(part, str) and not part.lstrip("+-").isdecimal():
        return _index_of_label(part, count, categories)
    try:
        index = int(part)
    except (TypeError, ValueError):
        raise LossError(f"{part!r} is not a valid target.", f"A target is {TARGETS}.") from None
    _check_range(index, count)
    return index


def find_class(label: str, categories: Sequence[str]) -> int:
    """Return the index of a class by its label, or by its label in other capitals."""
    matches = [i for i, name in enumerate(categories) if name == label] or [
        i for i, name in enumerate(categories) if name.lower() == label.lower()
    ]
    if len(matches) > 1:
        indices = " and ".join(map(str, matches))
        raise LossError(f"Several classes have the label {label!r}: {indices}.", "Give the index.")
    if not matches:
        near = did_you_mean(label, categories)
        known = near if categories else "This model has no class labels. Give an index."
        raise LossError(f"No class has the label {label!r}.", known or f"A target is {TARGETS}.")
    return matches[0]


def _index_of_label(part: str, count: int, categories: Sequence[str]) -> int:
    if Path(part).is_file() and part.lower() not in map(str.lower, categories):
        raise LossError(
            f"{part!r} is {describe_file(part)[0]}, which cannot be read as a target.", f"{_FILES}."
        )
    index = find_class(part, categories)
    _check_range(index, count)
    return index


def _check_range(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise LossError(
            f"There is no class {index}: the model's output has {count} "
            f"{'class' if count == 1 else 'classes'}.",
            f"Give an index from 0 to {count - 1}." if count > 1 else "The only index is 0.",
        )


def _label(index: int, categories: Sequence[str]) -> str:
    return f"{index} ({categories[index]})" if 0 <= index < len(categories) else str(index)


def _argmax_text(predicted: Tensor, categories: Sequence[str]) -> str:
    if predicted.ndim > 1:
        return "argmax at each position"
    shown = [_label(int(index), categories) for index in predicted[:5]]
    more = ", ..." if len(predicted) > 5 else ""
    return f"argmax: {', '.join(shown)}{more}"
