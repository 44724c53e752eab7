"""Edits bound to the layers that they match, with the tensors that they read, and applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor, nn

from hookscope.errors import EditError, HookscopeError
from hookscope.files.output_path import MARK, holds_features
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import shape_label
from hookscope.hooks.edits.operations import OPERATIONS, EditSite, edit_seed
from hookscope.hooks.layers import Layer, names_in, select
from hookscope.hooks.tensor_sink import put_positions, take_positions
from hookscope.results.dimensions import channel_dim
from hookscope.results.located_positions import LocatedPositions
from hookscope.specs.edit import Edit, TensorSource, read_again
from hookscope.tensors import save as store

_ROWS = 1024  # of a features folder that are read at once


def read_source(edit: Edit, files: dict[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """Return the tensors that an edit may need, by key; an array has the empty key."""
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
    from hookscope.stores.features.features import Features  # few edits read a data set

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

    A vector as long as the channels is broadcast along them, any other tensor as in PyTorch.
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


@dataclass(frozen=True)
class BoundEdit:
    """One edit at one layer that it matches, the ``position``-th of the edits as given, from 0.

    ``place`` has the arguments and tokens of the run, by which positions are found.
    """

    edit: Edit
    position: int
    layer: Layer
    stored: Mapping[str, Tensor] = field(repr=False)
    place: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def concerns(self, kind: str, call: int) -> bool:
        """Whether it applies to values of this kind at this call of its layer."""
        return self.edit.kind == kind and self.edit.call in (None, call)


def bind_edits(
    model: nn.Module,
    edits: tuple[Edit, ...],
    spec: str = "MODEL",
    place: Mapping[str, Any] | None = None,
) -> tuple[BoundEdit, ...]:
    """Find the layers of ``model`` that edits match, and read the files that they name."""
    files: dict[str, Mapping[str, Tensor]] = {}
    names = names_in(model) if edits else ()
    return tuple(
        BoundEdit(edit, position, layer, read_source(edit, files), place or {})
        for position, edit in enumerate(read_again(edit, names) for edit in edits)
        for layer in select(model, [edit.pattern], spec=spec)
    )


def apply_edit(
    bound: BoundEdit,
    tensor: Tensor,
    key: str,
    seed: int,
    activation: Tensor | None = None,
    located: LocatedPositions | None = None,
) -> Tensor:
    """Return the edited ``tensor``: a new tensor of the same shape and dtype.

    Selected positions and channels are edited as a tensor of their own.
    """
    if located is not None:
        try:
            part = take_positions(tensor, located)
            active = None if activation is None else take_positions(activation, located)
            new = _apply(bound, part, key, seed, active, located, tuple(tensor.shape))
            return put_positions(tensor, located, new)
        except (RuntimeError, ValueError, TypeError) as error:
            raise edit_error(bound, str(error).splitlines()[0].rstrip(".")) from error
    return _apply(bound, tensor, key, seed, activation)


def _apply(
    bound: BoundEdit,
    tensor: Tensor,
    key: str,
    seed: int,
    activation: Tensor | None,
    located: LocatedPositions | None = None,
    whole_shape: tuple[int, ...] = (),
) -> Tensor:
    """The edited tensor, which has some positions of a tensor of ``whole_shape`` or is complete."""
    edit, dim = bound.edit, channel_dim(bound.layer.type, tensor.ndim)
    try:
        index = _index_of(bound, tensor, dim)
        whole = (tensor, _stored_operand(bound, tensor, key, located, whole_shape), activation)
        part, stored, active = (
            t if index is None or t is None else t.index_select(dim, index) for t in whole
        )
        assert part is not None
        site = EditSite(key, edit_seed(seed, bound.position, key), dim, stored, active)
        new = OPERATIONS[edit.name](part, edit.argument, site)
        if new.shape != part.shape or new.dtype != part.dtype:
            raise ValueError(f"{_describe(part)} became {_describe(new)}")
        return new if index is None else tensor.index_copy(dim, index, new)
    except HookscopeError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        raise edit_error(bound, str(error).splitlines()[0].rstrip(".")) from error


def edit_error(
    bound: BoundEdit, reason: str, repair: str = "Choose another operation, or fewer layers."
) -> EditError:
    """Return the error for an edit that cannot be applied to its layer, and what to do."""
    return EditError(
        f"The edit {bound.edit.text!r} cannot be applied to layer {bound.layer.title}"
        f" ({bound.layer.type}): {reason}.",
        repair,
        reason,
    )


def is_editable(bound: BoundEdit, tensor: Tensor) -> bool:
    """Whether the edit applies to a tensor of this dtype; ``patch`` does to all."""
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        reason = "its tensor is nested, sparse or quantized"
        raise edit_error(bound, reason, "Edit a layer before or after it.")
    return bound.edit.name == "patch" or tensor.is_floating_point() or tensor.is_complex()


def _index_of(bound: BoundEdit, tensor: Tensor, dim: int) -> Tensor | None:
    """The selected channels as an index; None for all channels."""
    channels = bound.edit.channels
    if channels is None:
        return None
    if not tensor.ndim:
        raise edit_error(bound, "a single number has no channels", "Leave out the brackets.")
    if channels[-1] >= tensor.shape[dim]:
        last = tensor.shape[dim] - 1
        raise edit_error(
            bound,
            f"there is no channel {channels[-1]} in dimension {dim} of {_describe(tensor)}",
            f"Use channels from 0 to {last}.",
        )
    return torch.tensor(channels, device=tensor.device)


def _stored_operand(
    bound: BoundEdit,
    tensor: Tensor,
    key: str,
    located: LocatedPositions | None,
    whole: tuple[int, ...],
) -> Tensor | None:
    """The tensor from a file that the edit takes, in the shape and the dtype of ``tensor``."""
    edit, source = bound.edit, bound.edit.argument
    if not isinstance(source, TensorSource):
        return None
    if source.key is None and not source.path.endswith(".npy"):
        check_key(edit, source.path, key, bound.stored)
        wanted, scale = key, 1.0
    else:
        wanted, scale = operand(source, bound.stored)
    other = bound.stored[wanted]
    dim = channel_dim(bound.layer.type, tensor.ndim)
    fitted = fit_operand(other, tensor, dim, located, whole)
    kinds = (other.is_floating_point(), other.is_complex())
    if fitted is None or kinds != (tensor.is_floating_point(), tensor.is_complex()):
        name = f"{wanted} in {source.path}" if wanted else source.path
        fits = [shape_label(tensor.shape)] + ([f"{tensor.shape[dim]}"] if tensor.ndim > 1 else [])
        if located is not None:
            fits.insert(1, shape_label(whole))
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise edit_error(
            bound,
            f"{name} is {_describe(other)}, but the tensor is {_describe(tensor)}",
            f"Give a tensor of shape {' or '.join(fits)} and dtype {dtype}; a dimension may be 1.",
        )
    fitted = fitted.to(tensor.device, tensor.dtype)
    return fitted if scale == 1.0 else fitted * scale


def _describe(tensor: Tensor) -> str:
    """Shape and dtype as text: ``1x16x8x8 float32``."""
    return f"{shape_label(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
