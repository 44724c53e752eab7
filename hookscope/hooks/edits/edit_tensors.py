"""The tensors that edits read: from captures, other files, and the mean of a features folder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import safetensors
import torch
from torch import Tensor

from hookscope.errors import EditError
from hookscope.files.output_path import MARK, holds_features
from hookscope.files.suggestions import did_you_mean
from hookscope.hooks.tensor_sink import take_positions
from hookscope.results.positions import LocatedPositions
from hookscope.specs.edit import Edit, TensorSource
from hookscope.stores.features.features import Features
from hookscope.tensors import save as store

_ROWS = 1024  # of a features folder that are read at once


def read_source(edit: Edit, files: dict[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """Return the tensors that an edit may need, by key; that of an array has the empty key."""
    source = edit.argument
    if not isinstance(source, TensorSource):
        return {}
    if holds_features(source.path):
        return {source.key or "": _mean_of_rows(edit, source)}
    if source.path not in files:
        files[source.path] = _read_file(source.path)
    stored = files[source.path]
    if source.key is not None:
        check_key(edit, source.path, _key_in(source, stored), stored)
    return stored


def operand(source: TensorSource, stored: Mapping[str, Tensor]) -> tuple[str, float]:
    """Return the key of an edit's tensor in its file, and the factor to multiply it with.

    A key may itself end in a colon and a number, which is then not a factor.
    """
    key = _key_in(source, stored)
    return key, 1.0 if source.typed and key == source.typed else source.scale


def _key_in(source: TensorSource, stored: Mapping[str, Tensor]) -> str:
    return source.typed if source.typed in stored else source.key or ""


def check_key(edit: Edit, path: str, key: str, stored: Mapping[str, Tensor]) -> None:
    """Raise EditError if a file does not contain the key that an edit needs."""
    if key not in stored:
        near = did_you_mean(key, stored) or f"It contains {', '.join(list(stored)[:5])}."
        reason = f"{key!r} is not in {path}"
        raise EditError(
            f"The edit {edit.text!r} needs {key!r}, which is not in {path}.", near, reason
        )


def _read_file(path: str) -> Mapping[str, Tensor]:
    if path.endswith(".npy"):
        try:
            return {"": torch.from_numpy(np.load(path, allow_pickle=False))}
        except (OSError, ValueError, TypeError) as error:
            raise EditError(
                f"{path} cannot be read as an array of numbers: {error}.", "Write it again."
            ) from error
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if MARK not in (file.metadata() or {}):
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        pass  # the reader of captures says what the file is
    return store.read_tensors(path)[0]


def _mean_of_rows(edit: Edit, source: TensorSource) -> Tensor:
    """The mean of the rows of a key, in float64, without inputs that were skipped."""
    features = Features(source.path)
    key = source.key or ""
    if key not in features:
        near = did_you_mean(key, features.keys) or f"It has {', '.join(features.keys[:5])}."
        raise EditError(
            f"The edit {edit.text!r} needs {key!r}, which is not in {source.path}.", near
        )
    rows, skipped = features[key], set(features.inputs.skipped)
    used = [row for row in range(len(rows)) if row not in skipped]
    if not used:
        raise EditError(f"{source.path} has no rows, so they have no mean.", "Extract some.")
    total = np.zeros(rows.shape[1:])
    for start in range(0, len(used), _ROWS):
        total += np.asarray(rows[used[start : start + _ROWS]], np.float64).sum(0)
    return torch.from_numpy(total / len(used))


def fit_operand(
    other: Tensor,
    tensor: Tensor,
    dim: int,
    located: LocatedPositions | None = None,
    whole: tuple[int, ...] = (),
) -> Tensor | None:
    """Return a tensor of a file in the shape of ``tensor``; None if it does not fit.

    A vector of the length of the channels is broadcast against all other dimensions. Any other
    tensor is broadcast as in PyTorch. A tensor of the whole sequence gives its positions.
    """
    if other.ndim == 1 and tensor.ndim > 1 and len(other) == tensor.shape[dim]:
        other = other.reshape([-1 if n == dim else 1 for n in range(tensor.ndim)])
    if _broadcasts(tuple(other.shape), tuple(tensor.shape)):
        return other.expand(tensor.shape)
    if located is not None and _broadcasts(tuple(other.shape), whole):
        return take_positions(other.expand(whole), located)
    return None


def _broadcasts(shape: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    """Whether a shape can be broadcast to another one."""
    if len(shape) > len(onto):
        return False
    pairs = zip(reversed(shape), reversed(onto), strict=False)
    return all(a in (1, b) for a, b in pairs)
