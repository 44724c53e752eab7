"""From the words typed, or the objects given, to a model on its device and the call it gets."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault, RequestError
from hookscope.hooks.edits.bound_edit import bind_edits
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layers import Layer, check_not_lazy
from hookscope.hooks.selection import select
from hookscope.hooks.user_hooks.hook_loader import bind_user_hooks as bind_hooks
from hookscope.hooks.user_hooks.hook_loader import load_user_hooks as find_hooks
from hookscope.inputs.batch import Batch, build_batch
from hookscope.sources.live import check_model
from hookscope.sources.loaded import LoadedModel, Recipe
from hookscope.sources.model_loader import load, wrap
from hookscope.sources.wrappers import copy_model, dispatch_device
from hookscope.specs.model_spec import LIVE
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.tensors.nested import as_call, map_tensors

log = logging.getLogger("hookscope")


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
    plan: BoundInterventions = BoundInterventions()  # noqa: RUF009 - it is frozen
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


def find_model(model: ModelRequest, seed: int) -> LoadedModel:
    """Load the model that is named, or take the one that is given."""
    check_model(model.model, str, os.PathLike)
    if not model.named:
        return wrap(model.model)
    return load(
        model.model,
        weights=model.weights,
        rename=model.rename,
        partial=model.partial,
        model_args=model.model_args,
        seed=seed,
        method=model.method,
        attn=model.attn,
        trust=model.trust,
    )


def prepare(request: Request, *, loaded: LoadedModel | None = None) -> Prepared:
    """Load or take the model, choose the layers, build the input, and put both on the device.

    The input may be a ``Batch`` that was built for another model, which goes to this one as it is.
    A live module stays where it is unless another device or dtype is asked for, and then a copy is
    moved.

    Args:
        request: what is asked for.
        loaded: the model, where it is loaded already.

    Raises:
        RequestError: what is asked for does not fit the model or this machine.
    """
    run, changes = request.run, request.interventions
    hooks = find_hooks(changes.hooks, changes.kinds, changes.hook_args or {}, verb=request.command)
    loaded = loaded or find_model(request.model, run.seed)
    live = loaded.source == LIVE
    check_not_lazy(loaded.module)
    if run.generate is not None:
        check_generation(loaded.module, loaded.word, run.generate, request.model.method)
    layers = select_layers(request.layers, loaded.module, loaded.word)  # before the costly part
    batch = _batch(request.input, loaded, run.seed)
    dtype: torch.dtype | None = getattr(torch, run.dtype) if run.dtype is not None else None
    if run.device_map is None:
        device = _choose_device(run.device, loaded.module, live=live)
        module = _moved(loaded.module, device, dtype, live=live)
    else:
        from hookscope.execution.device_dispatch import dispatch

        module = loaded.module.to(dtype=dtype)  # first, so that it is known what fits
        device = dispatch(module, run.device_map, run.max_memory)
    if module is not loaded.module:
        layers = select_layers(request.layers, module, loaded.word)
    dtype = dtype or next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    return Prepared(
        loaded,
        module,
        layers,
        map_tensors(batch.value, lambda path, tensor: _like_model(tensor, device, dtype)),
        batch.sources,
        run.seed,
        device,
        str(dtype or torch.float32).removeprefix("torch."),
        run.train,
        plan=BoundInterventions(
            bind_edits(module, changes.value_edits, loaded.word),
            bind_edits(module, changes.gradient_edits, loaded.word),
            bind_hooks(hooks, module, layers, loaded.word),
        ),
        recipe=batch.recipe,
        generate=run.generate,
    )


def select_layers(selection: LayerSelection, module: nn.Module, word: str) -> tuple[Layer, ...]:
    """Return the layers of ``module`` that are meant; ``word`` is what the user calls the model."""
    return select(
        module,
        selection.layers,
        types=selection.types,
        depth=selection.depth,
        leaves=selection.leaves,
        word=word,
    )


def _batch(request: InputRequest, loaded: LoadedModel, seed: int) -> Batch:
    if isinstance(request.input, Batch):
        return request.input
    batch = build_batch(
        loaded,
        request.input,
        shape=None if request.shape is None else tuple(request.shape),
        preprocess=request.preprocess,
        size=request.size,
        mean=request.mean,
        std=request.std,
        seed=seed,
    )
    log.info("%s", batch.note)
    return batch


def _choose_device(word: str | None, module: nn.Module, *, live: bool) -> torch.device:
    if place := dispatch_device(module.modules()):
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


def _moved(
    module: nn.Module, device: torch.device, dtype: torch.dtype | None, *, live: bool
) -> nn.Module:
    """The model on ``device`` in ``dtype``; somebody's own module is copied before it is moved."""
    if dispatch_device(module.modules()):
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
        module = copy_model(module, "to be moved", repair)
    return module.to(device=device, dtype=dtype)


def _like_model(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def check_generation(module: nn.Module, word: str, steps: int, method: str | None) -> None:
    """Refuse to generate where that cannot be.

    Raises:
        RequestError: the model has no ``generate``, ``steps`` is no positive number, or another
            method is to run.
    """
    if steps < 1:
        raise RequestError(f"{steps!r} is no number of tokens.", "Generate 1 or more.")
    if not callable(getattr(module, "generate", None)):
        raise RequestError(
            f"{word} has no generate, so it cannot be run token by token.",
            "Leave out --generate, or name a model with a language model's head.",
        )
    if method not in (None, "forward"):
        raise RequestError(
            "--generate and --method both say which method of the model runs.", "Leave out one."
        )


def generate(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], steps: int
) -> Any:
    """Return what ``module.generate`` returns for ``steps`` new tokens, the likeliest each time.

    Its calls of the module and of the modules in it run hooks, each under a number of its own.
    """
    function: Any = module.generate
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    greedy = {"do_sample": False} if open_ended or "do_sample" in parameters else {}
    return function(*args, **kwargs, max_new_tokens=steps, **greedy)
