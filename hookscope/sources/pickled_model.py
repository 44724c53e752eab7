"""Whole models saved by ``torch.save(model, FILE)``, opened for ``--trust`` alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookscope.errors import ModelError, WeightsFileError
from hookscope.files.file_types import SAVE_WEIGHTS, WRITE_AGAIN, describe_file, is_pickled_object
from hookscope.files.hashes import BackgroundHash, blake3_of
from hookscope.files.pickle_scan import foreign_globals, list_globals
from hookscope.files.plain_pickle import OpaqueObject
from hookscope.files.shell_words import quote_word
from hookscope.files.words import join_first
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo
from hookscope.sources.model_weights import tensor_set
from hookscope.sources.user_code import run_user_code
from hookscope.sources.weights import load_over
from hookscope.stores.weights.checkpoint_parts import DamagedCheckpoint, choose_part
from hookscope.stores.weights.open_weights import open_weights, split_part
from hookscope.stores.weights.weight_dtypes import read_numpy_dtype
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.stores.weights.zip_records import DamagedArchive, check_record_sizes

log = logging.getLogger("hookscope")

_KIND = "torch.save, opened with --trust"
_DEEPEST = 16
_LISTED = 5


def open_trusted_weights(text: str) -> WeightSet:
    """Open weights; a file with Python objects is unpickled, and modules become state dicts."""
    path, part = split_part(text)
    if not is_pickled_object(describe_file(path)[0]):
        return open_weights(text)
    content, named_classes = unpickle_trusted(path)
    try:
        chosen = choose_part(_plain(content, 0), _is_tensor, part, path, decides=_is_of_torch)
    except DamagedCheckpoint as error:
        raise _unreadable(path, error, SAVE_WEIGHTS) from error
    named = {name: _as_tensor(value) for name, value in chosen.tensors.items() if _is_plain(value)}
    if not named:
        raise WeightsFileError(f"The file {path!r} contains no tensors.", SAVE_WEIGHTS)
    notes = [f"Code of the file was run: it names {named_classes}."]
    if left := sorted({*chosen.tensors, *chosen.unread} - named.keys()):
        notes.append(f"Not listed, since they are not plain tensors: {', '.join(left[:_LISTED])}.")
    return tensor_set(named, path, _KIND, chosen.name, metadata=chosen.metadata, notes=tuple(notes))


def unpickle_trusted(path: str) -> tuple[Any, str]:
    """Return what a pickle builds, which runs its code, and the first classes that it names."""
    with open(path, "rb") as file:
        classes = foreign_globals(list_globals(file))
    named = join_first(classes, _LISTED)
    log.warning("%s runs code: it names %s", path, named)
    try:
        check_record_sizes(path)
    except DamagedArchive as error:
        raise _unreadable(path, error, WRITE_AGAIN) from error
    load = lambda: torch.load(path, map_location="cpu", weights_only=False)  # noqa: E731
    return run_user_code(path, load), named


def _unreadable(path: str, error: Exception, hint: str) -> WeightsFileError:
    return WeightsFileError(f"The weights in {path!r} cannot be read: {error}.", hint)


def _is_tensor(value: Any) -> TypeGuard[Tensor | NDArray[Any]]:
    return isinstance(value, Tensor | np.ndarray)


def _is_of_torch(value: Any) -> TypeGuard[Tensor | NDArray[Any]]:
    return isinstance(value, Tensor)


def _as_tensor(value: Tensor | NDArray[Any]) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.from_numpy(np.asarray(value, value.dtype.newbyteorder("="), order="C"))


def _is_plain(tensor: Tensor | NDArray[Any]) -> bool:
    if isinstance(tensor, np.ndarray):
        return True
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def _plain(content: Any, depth: int) -> Any:
    """The content with modules as their state dicts, and other objects as their attributes."""
    if isinstance(content, nn.Module):
        state = content.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if isinstance(content, Tensor | str | int | float) or depth == _DEEPEST:
        return content
    if isinstance(content, np.ndarray):
        is_read = read_numpy_dtype(content.dtype.str) is not None
        return content if is_read else OpaqueObject("numpy.ndarray")
    if isinstance(content, Mapping):
        named: dict[str, Any] = {}
        for key, value in content.items():
            name = str(key) if str(key) not in named else f"{key} {len(named)}"  # 2 and "2"
            named[name] = _plain(value, depth + 1)
        return named
    if isinstance(content, list | tuple):
        return [_plain(value, depth + 1) for value in content]
    attributes = getattr(content, "__dict__", None)
    return _plain(attributes, depth + 1) if isinstance(attributes, dict) else None


def load(request: LoadRequest) -> LoadedModel:
    """Open a pickled model: the whole content of its file, or the only module in a mapping."""
    spec = request.spec
    request.refuse_arguments()
    content, _ = unpickle_trusted(spec.path)
    module = _only_module(content, spec.path)
    own = WeightsInfo("as saved", BackgroundHash(blake3_of, spec.path))
    info = load_over(module, request.weights, own)
    return LoadedModel(module.eval(), spec.text, spec.name, spec.source, weights=info)


def _only_module(content: Any, path: str) -> nn.Module:
    if isinstance(content, nn.Module):
        return content
    inner = list(content.values()) if isinstance(content, Mapping) else []
    modules = [value for value in inner if isinstance(value, nn.Module)]
    if len(modules) == 1:
        return modules[0]
    what = f"{len(modules)} models" if modules else f"a {type(content).__name__} without a model"
    raise ModelError(
        f"{path!r} contains {what}.",
        f"List its tensors: hookscope tree {quote_word(path)} --trust",
    )
