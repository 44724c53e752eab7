"""What a loss is measured against: a target's word made into class indices or a tensor."""

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
from hookscope.specs.losses import TARGET_SUFFIXES, TARGETS, check_target, is_target_file
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.suggestions import did_you_mean

_FILES = f"A target file is {', '.join(TARGET_SUFFIXES[:-1])} or {TARGET_SUFFIXES[-1]}"


@dataclass(frozen=True)
class Target:
    """A target that fits some logits of shape N, C, and any more.

    Exactly one of the two is there: ``classes`` (int64, shaped as the logits without their class
    dimension) or ``values`` (shaped as the logits, and of their dtype).
    """

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
    """Make ``target`` fit ``logits``, whose dimension 1 are the classes.

    Args:
        target: a word, an index, a list of them for the rows of the batch, or a tensor: integers
            are class indices, floating numbers the target itself, in the shape of the logits or of
            one row of them.
        logits: of shape N, C, and any more; only its shape, dtype and device count, and its values
            for ``argmax``.
        categories: names of the classes by index.

    Raises:
        LossError: the target cannot be read, or does not fit.

    Example:
        >>> resolve("3,0", torch.zeros(2, 10)).classes
        tensor([3, 0])
    """
    logits = logits.detach()
    if isinstance(target, os.PathLike) or is_target_file(target):
        path = os.fspath(target)
        return _from_tensor(read_target(path), logits, path)
    if isinstance(target, Tensor | np.ndarray):
        return _from_tensor(torch.as_tensor(target), logits, "given tensor")
    if target == "argmax":
        best = logits.argmax(1)
        return Target(_argmax_text(best, categories), classes=best)
    if target == "uniform":
        count = logits.shape[1]
        return Target(f"uniform over {count} classes", values=torch.full_like(logits, 1 / count))
    words = _split(target, categories)
    indices = [_index(word, logits.shape[1], categories) for word in words]
    if len(indices) not in (1, len(logits)):
        raise LossError(
            f"{len(indices)} targets do not fit a batch of {len(logits)}.",
            "Give one target for all rows, or one for each.",
        )
    rows = torch.tensor(indices, device=logits.device).expand(len(logits))
    shape = (len(logits), *logits.shape[2:])
    spread = rows.reshape(-1, *[1] * (logits.ndim - 2)).expand(shape)
    return Target(", ".join(_label(index, categories) for index in indices), classes=spread)


def target_for_function(target: Any, categories: Sequence[str] = ()) -> tuple[Any, str]:
    """Return ``target`` as a function of the user's own gets it, and what it is in words.

    An index or a label becomes an int, several of them a tensor of int64, the word of a file the
    tensor in it. ``argmax``, the default, becomes None. Whatever else was given from Python, and a
    word that is nothing of all that for a model without named classes, is handed over as it is.

    Raises:
        LossError: a file cannot be read, or a label is no class of the model.

    Example:
        >>> target_for_function("3"), target_for_function("dog", ["cat", "dog"]), target_for_function("argmax")
        ((3, '3'), (1, '1 (dog)'), (None, ''))
    """
    if isinstance(target, os.PathLike) or is_target_file(target):
        path = os.fspath(target)
        tensor = read_target(path)
        return tensor, f"{path} ({'x'.join(map(str, tensor.shape)) or 'one number'})"
    if isinstance(target, str) and target == "argmax":
        return None, ""
    if isinstance(target, list | tuple) and target and all(type(n) is int for n in target):
        target = ",".join(map(str, target))
    if not isinstance(target, str):
        plain = isinstance(target, int | float | None)
        return target, str(target) if plain else f"given {type(target).__name__}"
    words = _split(target, categories)
    numeric = all(word.lstrip("+-").isdecimal() for word in words)
    if target == "uniform" or not (numeric or categories):
        return target, target
    indices = [
        int(word)
        if word.lstrip("+-").isdecimal()
        else _index_of_label(word, len(categories), categories)
        for word in words
    ]
    text = ", ".join(_label(index, categories) for index in indices)
    return (indices[0] if len(indices) == 1 else torch.tensor(indices)), text


def read_target(path: str) -> Tensor:
    """Read the one tensor in a ``.npy``, ``.safetensors``, ``.pt`` or ``.pth`` file.

    Raises:
        LossError: there is no such file, it cannot be read, or does not hold exactly one tensor.
    """
    check_target(path)
    kind, repair = describe_file(path)
    if kind in TOO_LARGE:
        raise LossError(f"The target file {path!r} is {kind}.", repair)
    try:
        if path.lower().endswith(".npy"):
            # Mapped: numpy would else make room for whatever length the file begins with.
            found: Any = torch.from_numpy(np.array(np.load(path, "r", allow_pickle=False)))
        elif path.lower().endswith(".safetensors"):
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # of a damaged file the readers raise nearly anything
        why = str(exc).partition("\n")[0]
        raise LossError(
            f"The target file {path!r} cannot be read: {end_sentence(why)}",
            f"{_FILES} that holds one tensor of numbers, such as numpy.save writes.",
        ) from exc
    if isinstance(found, dict) and len(found) == 1:
        (found,) = found.values()
    if not isinstance(found, Tensor):
        count = f"{len(found)} entries" if isinstance(found, dict) else type(found).__name__
        raise LossError(f"The target file {path!r} holds {count}.", "It is to hold one tensor.")
    return found


def _from_tensor(tensor: Tensor, logits: Tensor, text: str) -> Target:
    text = f"{text} ({'x'.join(map(str, tensor.shape)) or 'one number'})"
    if tensor.is_floating_point():
        if tensor.shape not in (logits.shape, logits.shape[1:]):
            raise _misfit(tensor, [tuple(logits.shape), tuple(logits.shape[1:])])
        values = tensor.to(logits.device, logits.dtype).expand(logits.shape)
        return Target(text, values=values)
    if tensor.is_complex():
        raise LossError("A complex target fits no loss.", "Give real numbers or class indices.")
    wanted = (len(logits), *logits.shape[2:])
    classes = tensor.long()
    if classes.numel() == 1:
        classes = classes.reshape(()).expand(wanted)
    elif classes.shape == wanted[:1]:
        classes = classes.reshape(-1, *[1] * (logits.ndim - 2)).expand(wanted)
    elif classes.shape != wanted:
        raise _misfit(tensor, [wanted, wanted[:1]])
    for extreme in (int(classes.min()), int(classes.max())):
        _check_range(extreme, logits.shape[1])
    return Target(text, classes=classes.to(logits.device))


def _misfit(tensor: Tensor, wanted: Iterable[tuple[int, ...]]) -> LossError:
    shapes = " or ".join("x".join(map(str, shape)) for shape in dict.fromkeys(wanted))
    kind = "target" if tensor.is_floating_point() else "tensor of class indices"
    found = "x".join(map(str, tensor.shape))
    return LossError(f"A {kind} of shape {found} does not fit.", f"The output takes {shapes}.")


def _split(target: Any, categories: Sequence[str]) -> list[Any]:
    """The targets in one word; a label may itself hold a comma."""
    if isinstance(target, list | tuple):
        return list(target)
    if isinstance(target, str) and target not in categories:
        return [word.strip() for word in target.split(",")]
    return [target]


def _index(word: Any, count: int, categories: Sequence[str]) -> int:
    if isinstance(word, str) and not word.lstrip("+-").isdecimal():
        return _index_of_label(word, count, categories)
    try:
        index = int(word)
    except (TypeError, ValueError):
        raise LossError(f"{word!r} is no target.", f"A target is {TARGETS}.") from None
    _check_range(index, count)
    return index


def _index_of_label(word: str, count: int, categories: Sequence[str]) -> int:
    same = [i for i, name in enumerate(categories) if name == word] or [
        i for i, name in enumerate(categories) if name.lower() == word.lower()
    ]
    if len(same) > 1:
        indices = " and ".join(map(str, same))
        raise LossError(f"Several classes are called {word!r}: {indices}.", "Give the index.")
    if not same and Path(word).is_file():
        raise LossError(
            f"{word!r} is {describe_file(word)[0]}, from which no target is read.", f"{_FILES}."
        )
    if not same:
        near = did_you_mean(word, categories)
        known = near if categories else "This model names no classes; give an index."
        raise LossError(f"There is no class called {word!r}.", known or f"A target is {TARGETS}.")
    _check_range(same[0], count)
    return same[0]


def _check_range(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise LossError(
            f"There is no class {index}: the model's output has {count} "
            f"{'class' if count == 1 else 'classes'}.",
            f"Give an index from 0 to {count - 1}." if count > 1 else "The only index is 0.",
        )


def _label(index: int, categories: Sequence[str]) -> str:
    return f"{index} ({categories[index]})" if 0 <= index < len(categories) else str(index)


def _argmax_text(best: Tensor, categories: Sequence[str]) -> str:
    if best.ndim > 1:
        return "argmax at each position"
    shown = [_label(int(index), categories) for index in best[:5]]
    more = ", ..." if len(best) > 5 else ""
    return f"argmax: {', '.join(shown)}{more}"
