"""From the words typed, or the objects given, to a model on its device and the call it gets."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.changes import Plan
from hookscope.choices import DTYPES
from hookscope.demands import check_device_map
from hookscope.errors import EnvironmentFault, RequestError
from hookscope.generation import demand_generation, generate
from hookscope.inputs.batch import Batch, build
from hookscope.modules import Layer, refuse_lazy
from hookscope.select import select
from hookscope.sources.live import demand_model
from hookscope.sources.loaded import LoadedModel, Recipe
from hookscope.sources.loading import LIVE, load, wrap
from hookscope.tensors import as_call, map_tensors
from hookscope.wrappers import copied, dispatched_to

log = logging.getLogger("hookscope")

Model = str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram


@dataclass(frozen=True)
class Prepared:
    """A model, the layers chosen in it, and what it is going to be called with.

    ``value`` is the call value: a tuple of positional arguments, a dict of keyword ones, a pair of
    both, or the one argument. ``plan`` holds what the user does to it on the way, ``recipe`` is how
    image files became tensors, ``generate`` how many tokens a language model is to add.
    """

    loaded: LoadedModel
    module: nn.Module
    layers: tuple[Layer, ...]
    value: Any
    sources: tuple[dict[str, Any], ...]
    seed: int
    device: torch.device
    dtype: str
    train: bool
    plan: Plan = Plan()  # noqa: RUF009 - it is frozen
    recipe: Recipe | None = None
    generate: int | None = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, or let it generate."""
        if self.generate is None:
            return self.module(*args, **kwargs)
        return generate(self.module, args, kwargs, self.generate)

    def fresh_call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that the model may change in place: every tensor is a copy."""
        copies = map_tensors(self.value, lambda path, tensor: tensor.detach().clone())
        return as_call(copies)


def find_model(model: Model, loading: Mapping[str, Any], seed: int) -> LoadedModel:
    """Load or take the model; ``loading`` as for :func:`prepare`."""
    demand_model(model, str, os.PathLike)
    _check_seed(seed)
    if isinstance(model, str | os.PathLike):
        return load(model, seed=seed, **loading)
    if loading["weights"] != "random" or any(
        loading[name] for name in ("rename", "partial", "model_args", "method", "attn")
    ):
        raise RequestError(
            "weights, rename, partial, model_args, method and attn belong to a model given by"
            " name.",
            "Load the weights into the module before you pass it; hookscope.record records"
            " whatever method you call.",
        )
    return wrap(model)


def prepare(
    model: Model | LoadedModel,
    input: Any,
    *,
    selection: Mapping[str, Any],
    recipe: Mapping[str, Any],
    loading: Mapping[str, Any],
    seed: int,
    dtype: str | None,
    device: str | None,
    train: bool,
    device_map: str | None = None,
    max_memory: Mapping[str, int] | None = None,
    steps: int | None = None,
) -> Prepared:
    """Load or take the model, choose the layers, build the input, and put both on the device.

    ``model`` may be what :func:`find_model` returned, and ``input`` what ``build`` made for another
    model, which goes to this one as it is.
    ``selection`` is handed to ``select``, ``recipe`` (shape, preprocess, size, mean, std) to the
    reader of inputs, ``loading`` (weights, rename, partial, model_args, method, attn, trust) to
    ``load``. ``device_map`` and ``max_memory`` spread the model over devices in place of one
    ``device``, as ``hookscope.dispatch`` tells. ``steps`` is how many tokens a language model is to
    add. A live module stays where it is unless another device or dtype is asked for, and then a
    copy is moved.
    """
    loaded = model if isinstance(model, LoadedModel) else find_model(model, loading, seed)
    live = loaded.source == LIVE
    check_device_map(device_map, max_memory, device, loaded.source)
    if device_map is not None and live:
        raise RequestError(
            "A device map is for a model given by name, and this one is a live module.",
            "Spread it yourself before you hand it over: accelerate.dispatch_model(model,"
            " accelerate.infer_auto_device_map(model)).",
        )
    refuse_lazy(loaded.module)
    if steps is not None:
        demand_generation(loaded.module, loaded.word, steps, loading["method"])
    layers = select(loaded.module, **selection, word=loaded.word)  # before the costly part
    if isinstance(input, Batch):
        batch = input
    else:
        batch = build(loaded, input, seed=seed, **recipe)
        log.info("%s", batch.note)
    kind = _choose_dtype(dtype)
    if device_map is None:
        place = _choose_device(device, loaded.module, live=live)
        module = _moved(loaded.module, place, kind, live=live)
    else:
        from hookscope.dispatch import dispatch

        module = loaded.module.to(dtype=kind)  # first, so that it is known what fits
        place = dispatch(module, device_map, max_memory)
    if module is not loaded.module:
        layers = select(module, **selection, word=loaded.word)
    kind = kind or next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    value = map_tensors(batch.value, lambda path, tensor: _like_model(tensor, place, kind))
    name = str(kind or torch.float32).removeprefix("torch.")
    return Prepared(
        loaded,
        module,
        layers,
        value,
        batch.sources,
        seed,
        place,
        name,
        train,
        recipe=batch.recipe,
        generate=steps,
    )


def _choose_device(word: str | None, module: nn.Module, *, live: bool) -> torch.device:
    if place := dispatched_to(module):
        if word is not None:
            raise RequestError(
                "The model is spread over devices by accelerate, and cannot be moved.",
                "Leave out --device, or dispatch the model otherwise.",
            )
        return place
    if word is None and live:
        return next((t.device for t in module.parameters()), torch.device("cpu"))
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    idle = next((name for name, here in present.items() if here), None)
    if word == "auto":
        word = idle or "cpu"
        log.info("device: %s", word)
    try:
        place = torch.device(word or "cpu")
    except RuntimeError as error:
        raise RequestError(f"{word!r} is no device.", "Use cpu, cuda, mps or auto.") from error
    if place.type not in ("cpu", *present):
        raise RequestError(f"{word!r} is no device to run on.", "Use cpu, cuda, mps or auto.")
    if not present.get(place.type, True):
        raise EnvironmentFault(
            f"There is no {place.type} device that this torch can use.",
            "Use --device cpu, or install a torch built for it.",
        )
    if place.type == "cpu" and idle:
        log.info("device: cpu; a %s device stands idle (--device %s uses it)", idle, idle)
    return place


def _check_seed(seed: object) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise RequestError(f"{seed!r} is no seed.", "Give a whole number from 0 to 2**63 - 1.")


def _choose_dtype(word: str | None) -> torch.dtype | None:
    if word is None:
        return None
    if word not in DTYPES:
        raise RequestError(f"{word!r} is no dtype to run a model in.", f"Use {', '.join(DTYPES)}.")
    chosen: torch.dtype = getattr(torch, word)
    return chosen


def _moved(
    module: nn.Module, device: torch.device, dtype: torch.dtype | None, *, live: bool
) -> nn.Module:
    """The model on ``device`` in ``dtype``; somebody's own module is copied before it is moved."""
    if dispatched_to(module):
        if dtype is not None:
            raise RequestError(
                "The model is spread over devices by accelerate, and its dtype cannot be changed.",
                "Leave out --dtype, or load the model in that dtype.",
            )
        return module
    tensors = [*module.parameters(), *module.buffers()]
    there = all(
        t.device == device and (dtype is None or not t.is_floating_point() or t.dtype == dtype)
        for t in tensors
    )
    if there:
        return module
    if live:
        repair = "Move it yourself before you hand it over: model.to(...)."
        module = copied(module, "to be moved", repair)
    return module.to(device=device, dtype=dtype)


def _like_model(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else None)
