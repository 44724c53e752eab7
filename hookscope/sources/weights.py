"""Weights from files into a model, so that their values stand in memory once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.errors import HookscopeError, WeightsFileError
from hookscope.files.weight_files import WeightFiles
from hookscope.sources.checkpoint import lazy_tensors
from hookscope.sources.loaded import WeightsInfo, WeightsRequest
from hookscope.sources.meta import ParametersOnMeta, allocate_parameters, has_other_meta_tensors
from hookscope.sources.weight_names import join_first, model_family, resolve_names
from hookscope.specs import model_spec as spec
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")

Build = Callable[[AbstractContextManager[Any]], nn.Module]


@dataclass(frozen=True)
class _Fit:
    """What of a file goes into a model.

    ``tensors`` are those to be loaded, by their names in the model or, where it has none such, as
    they are; ``misfits`` tells, by name in the model, of those left out for their shape.
    """

    tensors: dict[str, Tensor]
    stripped: tuple[str, ...]
    misfits: dict[str, str]


def load_file_into(module: nn.Module, wanted: WeightsRequest) -> WeightsInfo:
    """Load a file of weights, or a set with its index, into ``module``; say what did not fit.

    Prefixes of wrappers are taken off the names, and those of ``wanted.rename`` are replaced.

    Raises:
        RequestError: there is no such file, or it is a folder without weights.
        WeightsFileError: a file cannot be read, holds no weights, or does not fit the model.
    """
    files = spec.check_weights_file(wanted.word)
    fit = _fit(lazy_tensors(files), module, wanted)
    return _told(wanted.word, files, fit, _put(module, fit, wanted))


def build_from_file(build: Build, wanted: WeightsRequest) -> tuple[nn.Module, WeightsInfo]:
    """Build a model and fill it from a file, without making values first that the file replaces.

    The model is built without values, and truly only if the file would leave some of them out:
    a buffer that is not saved, say. Its values are those of ``load_file_into`` in every bit.

    Args:
        build: builds the model, each time the same, within the context that it is given.
        wanted: which file, and how it is to be read.

    Raises:
        RequestError: there is no such file, or it is a folder without weights.
        WeightsFileError: a file cannot be read, holds no weights, or does not fit the model.
    """
    files = spec.check_weights_file(wanted.word)
    tensors = lazy_tensors(files)
    without_values = ParametersOnMeta()
    try:
        module = build(without_values)
    except Exception:  # its code looks at values, or the request is wrong: a true build tells
        without_values.drew = True
    if not without_values.drew:
        fit = _fit(tensors, module, wanted)
        if _fills(module, fit.tensors) and not has_other_meta_tensors(module):
            allocate_parameters(module)
            lists = _put(module, fit, wanted)
            if not lists[0]:
                return module, _told(wanted.word, files, fit, lists)
    module = build(nullcontext())
    fit = _fit(tensors, module, wanted)
    return module, _told(wanted.word, files, fit, _put(module, fit, wanted))


def _fit(stored: Mapping[str, Tensor], module: nn.Module, wanted: WeightsRequest) -> _Fit:
    """Find out what of a file goes into a model.

    Raises:
        WeightsFileError: nothing does.
    """
    path, own = wanted.word, _own(module)
    names, stripped = resolve_names(stored, own, wanted.rename, path)
    tensors = {names[name]: tensor for name, tensor in stored.items()}
    if not own.keys() & tensors.keys():
        family = model_family(stored)
        raise WeightsFileError(
            f"0 of the model's {_tensors(len(own))} are in {path!r}: it holds {join_first(stored)}"
            + (f", as {family} does" if family else "")
            + f", and the model has {join_first(own)}.",
            "Give the weights of this very model, or --rename OLD=NEW for other names.",
        )
    misfits = _misfits(tensors, own)
    if not wanted.partial or not misfits:
        return _Fit(tensors, stripped, {})
    rest = {name: tensor for name, tensor in tensors.items() if name not in misfits}
    if not own.keys() & rest.keys():
        raise WeightsFileError(
            f"0 of the model's {_tensors(len(own))} are in {path!r} in the same shape:"
            f" {join_first(misfits.values())}.",
            "Was the model built with other arguments?",
        )
    return _Fit(rest, stripped, misfits)


def _misfits(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, str]:
    """The tensors of a file that are of another shape in the model, each with both shapes."""
    return {
        name: f"{name} ({_lengths(tensor)} for {_lengths(own[name])})"
        for name, tensor in tensors.items()
        if name in own and not _same_shape(tensor, own[name])
    }


def _own(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and saved buffers of a model; what else it saves is its own affair."""
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _same_shape(stored: Tensor, own: Tensor) -> bool:
    return is_lazy(own) or stored.shape == own.shape  # a lazy one takes the shape of what it gets


def _fills(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Whether every parameter and buffer of a model gets its value, whole, from ``tensors``."""
    own = _own(module)
    filled = {id(own[n]) for n in tensors if n in own and _same_shape(tensors[n], own[n])}
    every = list(chain(module.parameters(), module.buffers()))
    return all(id(tensor) in filled and not is_lazy(tensor) for tensor in every)


def _put(
    module: nn.Module, fit: _Fit, wanted: WeightsRequest
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy tensors into a model; return what of the model is missing, and what it does not have.

    Raises:
        WeightsFileError: some do not fit or are missing, or cannot be read after all.
    """
    own, tensors, path = _own(module), fit.tensors, wanted.word
    state = OrderedDict(tensors)
    if all(name in tensors and _same_shape(tensors[name], own[name]) for name in own):
        # Versions of layers are not stored with all files; without them the oldest is assumed.
        state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except HookscopeError:
        raise
    except RuntimeError as exc:
        if misfits := _misfits(tensors, own):
            fitting = {id(own[n]) for n in tensors if n in own and n not in misfits}
            absent = [n for n in own if n not in misfits and id(own[n]) not in fitting]
            lacking = f", and it lacks {join_first(absent)}" if absent else ""
            count = len(own) - len(misfits) - len(absent)
            raise WeightsFileError(
                f"{count} of the model's {_tensors(len(own))} are in {path!r} in the same shape;"
                f" of another shape: {join_first(misfits.values())}{lacking}.",
                "Was the model built with other arguments? --partial takes those that fit.",
            ) from exc
        said = " ".join(line.strip() for line in str(exc).splitlines()[:4])
        raise WeightsFileError(
            f"The weights in {path!r} do not fit the model: {end_sentence(said)}",
            "Give what torch.save(model.state_dict(), FILE) wrote of this very model.",
        ) from exc
    except Exception as exc:  # a model may load in its own way
        raise WeightsFileError(
            f"The model does not take the weights in {path!r}: {type(exc).__name__}: {exc}",
            "Give what torch.save(model.state_dict(), FILE) wrote of this very model.",
        ) from exc
    loaded = {id(own[name]) for name in tensors if name in own}
    # Those that are tied to one that was read have their values.
    missing = [name for name in missing if name not in own or id(own[name]) not in loaded]
    if missing and not wanted.partial:
        raise incomplete_error(
            path, len(own), missing, unexpected, "--partial leaves them as built."
        )
    return tuple(missing), tuple(unexpected)


def incomplete_error(
    path: str, count: int, missing: Sequence[str], unexpected: Sequence[str], repair: str
) -> WeightsFileError:
    """The error for a file of weights that lacks some of a model's ``count`` tensors."""
    message = f"{count - len(missing)} of the model's {_tensors(count)} are in {path!r}"
    message += f", which lacks {join_first(missing)}"
    hint = "Give the weights of this very model"
    if unexpected:
        message += f" and holds {join_first(unexpected)} besides"
        hint += ", or --rename OLD=NEW for other names"
    return WeightsFileError(f"{message}.", f"{hint}; {repair}")


def _told(
    path: str, files: WeightFiles, fit: _Fit, lists: tuple[tuple[str, ...], tuple[str, ...]]
) -> WeightsInfo:
    """Say what did not fit, and return where the weights came from."""
    missing, unexpected = lists
    if fit.stripped:
        log.info("weights: took %s off the names in %s", " and ".join(fit.stripped), path)
    if fit.misfits:
        misfits = join_first(fit.misfits.values())
        log.warning("weights: left out for their shape (in %s): %s", path, misfits)
    warn_mismatches(path, [name for name in missing if name not in fit.misfits], unexpected)
    return WeightsInfo(path, files.blake3(), missing, unexpected, fit.stripped)


def warn_mismatches(path: str, absent: Sequence[str], unexpected: Sequence[str]) -> None:
    """Warn of tensors of the model that ``path`` does not hold, and of those it has besides."""
    if absent:
        log.warning(
            "weights: %d of the model's tensors %s not in %s and %s as built: %s",
            len(absent),
            "is" if len(absent) == 1 else "are",
            path,
            "stays" if len(absent) == 1 else "stay",
            join_first(absent),
        )
    if unexpected:
        log.warning(
            "weights: %s not the model's (in %s): %s",
            f"{_tensors(len(unexpected))} {'is' if len(unexpected) == 1 else 'are'}",
            path,
            join_first(unexpected),
        )


def _lengths(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
