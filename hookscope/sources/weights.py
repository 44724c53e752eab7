"""Load weights from checkpoint files into a model, with one copy of the values in memory."""

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
from hookscope.files.hashes import BackgroundHash
from hookscope.files.words import join_first, plural, shape_text
from hookscope.sources.checkpoint import lazy_tensors
from hookscope.sources.loaded import LoadRequest, WeightsInfo, WeightsRequest
from hookscope.sources.meta import ParametersOnMeta, allocate_parameters, has_other_meta_tensors
from hookscope.specs.catalog import no_weights_by_name
from hookscope.specs.model_spec import check_weights_file, end_sentence, is_weights_file
from hookscope.stores.weights.weight_names import ResolvedNames, model_family, resolve_names

log = logging.getLogger("hookscope")

Build = Callable[[AbstractContextManager[Any]], nn.Module]


@dataclass(frozen=True)
class _Fit:
    """The tensors of a file that are loaded into a model."""

    tensors: dict[str, Tensor]
    resolved: ResolvedNames
    misfits: dict[str, str]


def load_file_into(module: nn.Module, request: WeightsRequest) -> WeightsInfo:
    """Load a checkpoint, or a sharded set with its index, into ``module``."""
    files = check_weights_file(request.spec)
    file_hash = BackgroundHash(files.blake3)
    fit = _fit(lazy_tensors(files), module, request)
    return _report(request.spec, file_hash, fit, *_load(module, fit, request))


def load_over(module: nn.Module, request: WeightsRequest, own: WeightsInfo) -> WeightsInfo:
    """Load a file of weights, if there is one, over those that a model from a file has."""
    if request.spec == "random":
        return own
    if not is_weights_file(request.spec):
        raise no_weights_by_name(request.spec)
    return load_file_into(module, request)


def build(create: Build, request: LoadRequest) -> tuple[nn.Module, WeightsInfo]:
    """Build a model on the meta device, or with weights of a file, or with random ones."""
    if request.meta:
        return create(ParametersOnMeta()).to("meta"), WeightsInfo("none")
    if is_weights_file(request.weights.spec):
        return build_from_file(create, request.weights)
    note = "weights: random from seed %d, so untrained (for pretrained ones: --weights default)"
    log.info(note, request.seed)
    return create(nullcontext()), WeightsInfo("random")


def build_from_file(build: Build, request: WeightsRequest) -> tuple[nn.Module, WeightsInfo]:
    """Build a model on meta and load a checkpoint, bit-identical to ``load_file_into``."""
    # It is built with values only if the file lacks some, such as a buffer that is not saved.
    files = check_weights_file(request.spec)
    file_hash = BackgroundHash(files.blake3)
    tensors = lazy_tensors(files)
    without_values = ParametersOnMeta()
    try:
        module = build(without_values)
    except Exception:  # the model reads values, or the request is wrong: build it normally
        without_values.drew = True
    if not without_values.drew:
        fit = _fit(tensors, module, request)
        if _fills(module, fit.tensors) and not has_other_meta_tensors(module):
            allocate_parameters(module)
            missing, unexpected = _load(module, fit, request)
            if not missing:
                return module, _report(request.spec, file_hash, fit, missing, unexpected)
    module = build(nullcontext())
    fit = _fit(tensors, module, request)
    return module, _report(request.spec, file_hash, fit, *_load(module, fit, request))


def _fit(stored: Mapping[str, Tensor], module: nn.Module, request: WeightsRequest) -> _Fit:
    """Match the tensors of a file to those of a model."""
    path, own = request.spec, _own(module)
    resolved = resolve_names(stored, own, request.rename, path)
    tensors = {resolved.names[name]: tensor for name, tensor in stored.items()}
    if not own.keys() & tensors.keys():
        family = model_family(stored)
        raise WeightsFileError(
            f"0 of the model's {_count_text(len(own))} are in {path!r}: it contains"
            f" {join_first(stored)}"
            + (f", as {family} does" if family else "")
            + f", and the model has {join_first(own)}.",
            "Give the weights of this model, or rename key prefixes with --rename OLD=NEW.",
        )
    misfits = _misfits(tensors, own)
    if not request.partial or not misfits:
        return _Fit(tensors, resolved, {})
    rest = {name: tensor for name, tensor in tensors.items() if name not in misfits}
    if not own.keys() & rest.keys():
        raise WeightsFileError(
            f"0 of the model's {_count_text(len(own))} are in {path!r} with the same shape:"
            f" {join_first(misfits.values())}.",
            "Check the arguments that the model is built with (--model-arg).",
        )
    return _Fit(rest, resolved, misfits)


def _misfits(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, str]:
    """The tensors of a file that have another shape in the model, with both shapes as text."""
    return {
        name: f"{name} ({shape_text(tensor.shape, 'one number')} instead of"
        f" {shape_text(own[name].shape, 'one number')})"
        for name, tensor in tensors.items()
        if name in own and not _same_shape(tensor, own[name])
    }


def _own(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and saved buffers of a model, without its extra state."""
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _same_shape(stored: Tensor, own: Tensor) -> bool:
    return is_lazy(own) or stored.shape == own.shape  # a lazy parameter takes any shape


def _fills(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Whether every parameter and buffer of a model gets its whole value from ``tensors``."""
    own = _own(module)
    filled = {id(own[n]) for n in tensors if n in own and _same_shape(tensors[n], own[n])}
    every = chain(module.parameters(), module.buffers())
    return all(id(tensor) in filled and not is_lazy(tensor) for tensor in every)


def _load(
    module: nn.Module, fit: _Fit, request: WeightsRequest
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Load tensors into a model; return the missing and the unexpected names."""
    own, tensors, path = _own(module), fit.tensors, request.spec
    state = OrderedDict(tensors)
    if all(name in tensors and _same_shape(tensors[name], own[name]) for name in own):
        # Not all files have the versions of layers; without them the oldest is assumed.
        state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except HookscopeError:
        raise
    except RuntimeError as exc:
        if misfits := _misfits(tensors, own):
            fitting = {id(own[n]) for n in tensors if n in own and n not in misfits}
            absent = [n for n in own if n not in misfits and id(own[n]) not in fitting]
            absent_text = f"; missing: {join_first(absent)}" if absent else ""
            count = len(own) - len(misfits) - len(absent)
            raise WeightsFileError(
                f"{_share_text(count, len(own))} in {path!r} with the same"
                f" shape; with another shape: {join_first(misfits.values())}{absent_text}.",
                "Check the arguments that the model is built with (--model-arg), or load only the"
                " tensors that match with --partial.",
            ) from exc
        detail = " ".join(line.strip() for line in str(exc).splitlines()[:4])
        raise WeightsFileError(
            f"The weights in {path!r} do not fit the model: {end_sentence(detail)}",
            "Give a file that torch.save(model.state_dict(), FILE) wrote for this model.",
        ) from exc
    except Exception as exc:  # a model may have its own load_state_dict
        raise WeightsFileError(
            f"The model rejected the weights in {path!r}: {type(exc).__name__}: {exc}",
            "Give a file that torch.save(model.state_dict(), FILE) wrote for this model.",
        ) from exc
    loaded = {id(own[name]) for name in tensors if name in own}
    # A tensor that is tied to a loaded one has its value.
    missing = [name for name in missing if name not in own or id(own[name]) not in loaded]
    if missing and not request.partial:
        raise incomplete_error(
            path, len(own), missing, unexpected, "--partial keeps their initial values."
        )
    return tuple(missing), tuple(unexpected)


def incomplete_error(
    path: str, count: int, missing: Sequence[str], unexpected: Sequence[str], repair: str
) -> WeightsFileError:
    """Return the error for a checkpoint that lacks some of a model's ``count`` tensors."""
    message = f"{_share_text(count - len(missing), count)} in {path!r}"
    message += f"; missing: {join_first(missing)}"
    hint = "Give the weights of this model"
    if unexpected:
        message += f"; unexpected: {join_first(unexpected)}"
        hint += ", or rename key prefixes with --rename OLD=NEW"
    return WeightsFileError(f"{message}.", f"{hint}; {repair}")


def _report(
    path: str,
    file_hash: BackgroundHash,
    fit: _Fit,
    missing: tuple[str, ...],
    unexpected: tuple[str, ...],
) -> WeightsInfo:
    """Log what did not fit, and return the metadata of the weights."""
    stripped, renamed = fit.resolved.stripped, fit.resolved.renamed
    if stripped:
        log.info("weights: removed the prefix %s from the keys in %s", " and ".join(stripped), path)
    if renamed:
        log.info("weights: renamed %s in %s", plural(renamed, "key"), path)
    if fit.misfits:
        misfits = join_first(fit.misfits.values())
        log.warning("weights: not loaded from %s because of another shape: %s", path, misfits)
    warn_mismatches(path, [name for name in missing if name not in fit.misfits], unexpected)
    return WeightsInfo(path, file_hash, missing, unexpected, stripped)


def warn_mismatches(path: str, absent: Sequence[str], unexpected: Sequence[str]) -> None:
    """Warn of tensors of the model that are not in ``path``, and of those only in ``path``."""
    if absent:
        log.warning(
            "weights: %d of the model's tensors %s not in %s and %s: %s",
            len(absent),
            "is" if len(absent) == 1 else "are",
            path,
            "keeps its initial value" if len(absent) == 1 else "keep their initial values",
            join_first(absent),
        )
    if unexpected:
        log.warning(
            "weights: %s not in the model (from %s): %s",
            f"{_count_text(len(unexpected))} {'is' if len(unexpected) == 1 else 'are'}",
            path,
            join_first(unexpected),
        )


def _share_text(part: int, count: int) -> str:
    return f"{part} of the model's {_count_text(count)} {'is' if part == 1 else 'are'}"


def _count_text(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
