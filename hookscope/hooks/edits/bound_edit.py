"""Edits bound to the layers that they match, and their application to a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EditError, HookscopeError
from hookscope.hooks.edits.operations import OPERATIONS, EditSite, edit_seed
from hookscope.hooks.layers import Layer
from hookscope.hooks.position_sink import put_positions, take_positions
from hookscope.hooks.selection import select
from hookscope.results.dimensions import channel_dim
from hookscope.results.positions import LocatedPositions
from hookscope.specs.edit import Edit
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors import save as store


@dataclass(frozen=True)
class BoundEdit:
    """One edit at one layer that it matches.

    ``position`` counts the edits as given, from 0; ``stored`` holds the tensors of its file, and
    ``place`` the arguments and tokens of the run, by which positions are found.
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
    """Find the layers of ``model`` that edits match, and read the files that they name.

    ``place`` has the arguments and tokens of the run, as in its metadata.

    Raises:
        LayerError: a pattern matches nothing.
        ResultsFileError: a file cannot be read.
        EditError: a file does not contain the key of an ``add``.
    """
    files: dict[str, Mapping[str, Tensor]] = {}
    return tuple(
        BoundEdit(edit, position, layer, _stored(edit, files), place or {})
        for position, edit in enumerate(edits)
        for layer in select(model, [edit.pattern], spec=spec)
    )


def _stored(edit: Edit, files: dict[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    if edit.name not in ("add", "patch"):
        return {}
    path, key = edit.argument if edit.name == "add" else (edit.argument, None)
    if path not in files:
        files[path], _ = store.read_tensors(path)
    if key is not None:
        _check_key(edit, path, key, files[path])
    return files[path]


def _check_key(edit: Edit, path: str, key: str, stored: Mapping[str, Tensor]) -> None:
    if key not in stored:
        near = did_you_mean(key, stored) or f"It contains {', '.join(list(stored)[:5])}."
        raise EditError(f"The edit {edit.text!r} needs {key!r}, which is not in {path}.", near)


def apply_edit(
    bound: BoundEdit,
    tensor: Tensor,
    key: str,
    seed: int,
    activation: Tensor | None = None,
    located: LocatedPositions | None = None,
) -> Tensor:
    """Return the edited ``tensor``: a new tensor of the same shape and dtype.

    Selected positions and channels are edited as a tensor of their own. The others do not affect
    them and do not change.

    Args:
        bound: the edit and its layer.
        tensor: what is edited, any shape.
        key: the tensor's name in a capture.
        seed: the run's.
        activation: for a gradient, the value that it belongs to, of the same shape.
        located: where the positions of the edit are in the tensor; None for all.

    Raises:
        EditError: the operation cannot be applied to the tensor; names the layer.
    """
    if located is not None:
        try:
            part = take_positions(tensor, located)
            active = None if activation is None else take_positions(activation, located)
            new = _apply(bound, part, key, seed, active, located, tuple(tensor.shape))
            return put_positions(tensor, located, new)
        except (RuntimeError, ValueError, TypeError) as error:
            raise _edit_error(bound, str(error).splitlines()[0].rstrip(".")) from error
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
        whole = (tensor, _stored_operand(bound, tensor, key), activation)
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
        raise _edit_error(bound, str(error).splitlines()[0].rstrip(".")) from error


def _edit_error(
    bound: BoundEdit, reason: str, repair: str = "Choose another operation, or fewer layers."
) -> EditError:
    return EditError(
        f"The edit {bound.edit.text!r} cannot be applied to layer {bound.layer.title}"
        f" ({bound.layer.type}): {reason}.",
        repair,
        reason,
    )


def is_editable(bound: BoundEdit, tensor: Tensor) -> bool:
    """Whether the edit applies to a tensor of this dtype.

    Only ``patch`` changes integers and bools: indices and masks cannot be scaled or made noisy.

    Raises:
        EditError: the tensor is nested, sparse or quantized.
    """
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        reason = "its tensor is nested, sparse or quantized"
        raise _edit_error(bound, reason, "Edit a layer before or after it.")
    return bound.edit.name == "patch" or tensor.is_floating_point() or tensor.is_complex()


def _index_of(bound: BoundEdit, tensor: Tensor, dim: int) -> Tensor | None:
    """The selected channels as an index; None for all channels."""
    channels = bound.edit.channels
    if channels is None:
        return None
    if not tensor.ndim:
        raise _edit_error(bound, "a single number has no channels", "Leave out the brackets.")
    if channels[-1] >= tensor.shape[dim]:
        last = tensor.shape[dim] - 1
        raise _edit_error(
            bound,
            f"there is no channel {channels[-1]} in dimension {dim} of {_describe(tensor)}",
            f"Use channels from 0 to {last}.",
        )
    return torch.tensor(channels, device=tensor.device)


def _stored_operand(bound: BoundEdit, tensor: Tensor, key: str) -> Tensor | None:
    """The tensor from a file that the edit takes, of exactly the shape and dtype of ``tensor``."""
    edit = bound.edit
    if edit.name == "add":
        path, wanted = edit.argument
    elif edit.name == "patch":
        path, wanted = edit.argument, key
        _check_key(edit, path, key, bound.stored)
    else:
        return None
    other = bound.stored[wanted]
    if other.shape != tensor.shape or other.dtype != tensor.dtype:
        raise _edit_error(
            bound,
            f"{wanted} in {path} is {_describe(other)}, but the tensor is {_describe(tensor)}",
            "Record the file with an input of the same shape, and in the same dtype.",
        )
    return other.to(tensor.device)


def _describe(tensor: Tensor) -> str:
    """Shape and dtype as text: ``1x16x8x8 float32``."""
    shape = "x".join(map(str, tensor.shape)) or "a single number"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"
