"""Preparation of a run: the model on its device, its layers, its input and the interventions."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from hookscope.errors import EnvironmentFault, RequestError
from hookscope.execution.compiled_leaves import CompiledLeaves
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.prompt_tokens import describe_arguments
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.signatures import signature_of
from hookscope.hooks.edits.bound_edit import bind_edits
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layers import Layer, check_not_lazy, names_in, select
from hookscope.hooks.user_hooks import bind_user_hooks, load_user_hooks
from hookscope.inputs.batch import build_batch
from hookscope.inputs.input_reader import Batch
from hookscope.results.metadata import InputMetadata
from hookscope.sources.live import check_model
from hookscope.sources.loaded import LoadedModel, Recipe
from hookscope.sources.model_loader import load, wrap
from hookscope.sources.structure import modules_in
from hookscope.sources.wrappers import copy_model, dispatch_device
from hookscope.specs.model_spec import LIVE, ONNX
from hookscope.specs.position_spec import Positions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.nested import as_call, detach_clone, map_tensors

log = logging.getLogger("hookscope")


@dataclass(frozen=True)
class Prepared:
    """A model with its layers and its input, ready to run."""

    loaded: LoadedModel
    module: nn.Module
    layers: tuple[Layer, ...]
    value: Any
    sources: tuple[InputMetadata, ...]
    seed: int
    device: torch.device
    dtype: str
    train: bool | None  # None: each module keeps its mode
    interventions: BoundInterventions = BoundInterventions()  # noqa: RUF009 - it is frozen
    recipe: Recipe | None = None
    generate: int | None = None
    positions: Mapping[str, Positions] = field(default_factory=dict)
    compiled: CompiledLeaves | None = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, or generate tokens with it."""
        if self.generate is None:
            return self.module(*args, **kwargs)
        return generate(self.module, args, kwargs, self.generate)

    @signal_safe_contextmanager
    def preserved(self) -> Iterator[bool]:
        """Return the context of a run; see ``preserve_model_state``."""
        compiled = nullcontext() if self.compiled is None else self.compiled.in_place()
        state = preserve_model_state(self.module, train=self.train, seed=self.seed)
        with state as switched, compiled:
            yield switched

    def fresh_call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in which every tensor is a copy, so the model may change it in place."""
        return as_call(detach_clone(self.value))


def with_tokenizer(loaded: LoadedModel, input: InputRequest) -> LoadedModel:
    """Return the model with the tokenizer of the request, if it names one."""
    if input.tokenizer is None:
        return loaded
    from hookscope.sources.transformers.text_inputs import recipe_of_file

    return replace(loaded, own_text=recipe_of_file(os.fspath(input.tokenizer), loaded.module))


def find_model(model: ModelRequest, seed: int) -> LoadedModel:
    """Load the model by its spec, or wrap the given module."""
    check_model(model.model, str, os.PathLike)
    if not model.named:
        return wrap(model.model)
    return load(model, seed=seed)


def prepare(request: Request, *, loaded: LoadedModel | None = None) -> Prepared:
    """Load the model, select its layers, build the input, and move both to the device.

    A live module is copied before it is moved to another device or dtype.
    """
    run, interventions = request.run, request.interventions
    hooks = load_user_hooks(
        interventions.hooks,
        tuple(interventions.hook_kind),
        interventions.hook_args or {},
        verb=request.command,
    )
    loaded = loaded or find_model(request.model, run.seed)
    loaded = with_tokenizer(loaded, request.input)
    check_not_lazy(loaded.module)
    _check_has_values(loaded.module)
    if run.generate is not None:
        check_generation(loaded.module, loaded.spec, run.generate, request.model.method)
    # Errors come before the slow part.
    layers, positions = _selected(request, loaded.module, loaded.spec)
    batch = _build_input(request.input, loaded, run.seed)
    dtype: torch.dtype | None = getattr(torch, run.dtype) if run.dtype is not None else None
    module, device = _placed(loaded, run, dtype)
    if module is not loaded.module:
        layers, positions = _selected(request, module, loaded.spec)
    dtype = dtype or next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    cast = None if getattr(module, "_hookscope_keeps_dtypes", False) else dtype
    value = map_tensors(
        batch.value, lambda path, x: x.to(device, cast if x.is_floating_point() else None)
    )
    place = {**describe_arguments(loaded, value), "options": {"generate": run.generate}}
    return Prepared(
        loaded,
        module,
        layers,
        value,
        batch.sources,
        run.seed,
        device,
        str(dtype or torch.float32).removeprefix("torch."),
        run.train,
        interventions=BoundInterventions(
            bind_edits(module, interventions.value_edits, loaded.spec, place),
            bind_edits(module, interventions.gradient_edits, loaded.spec, place),
            bind_user_hooks(hooks, module, layers, loaded.spec),
        ),
        recipe=batch.recipe,
        generate=run.generate,
        positions=positions,
    )


def _check_has_values(model: nn.Module) -> None:
    """Raise RequestError if a model is on the meta device, and no hook may load its values."""
    modules = modules_in(model)
    if any(module._forward_pre_hooks or "_hf_hook" in vars(module) for module in modules):
        return
    members = [member for m in modules for member in (m._parameters, m._buffers)]
    tensors = [tensor for each in members for tensor in each.values() if tensor is not None]
    if tensors and all(tensor.is_meta for tensor in tensors):
        raise RequestError(
            "The model is on the meta device, where tensors have no values.",
            "Load the weights of the model, or build it on a device with memory.",
        )


def _selected(
    request: Request, module: nn.Module, spec: str
) -> tuple[tuple[Layer, ...], dict[str, Positions]]:
    """The selected layers, and the positions of the layers selected with positions only."""
    stores = request.command == "capture"
    parsed = request.layers.parsed_in(names_in(module), positions=stores)
    layers = _select(request.layers, [name for name, _ in parsed], module, spec)
    chosen: dict[str, Positions | None] = {}
    for pattern, positions in parsed if any(at for _, at in parsed) else ():
        for layer in () if pattern.startswith("!") else select(module, [pattern], spec=spec):
            before = chosen.get(layer.name, positions)
            both = positions and before and before.union(positions)
            chosen[layer.name] = positions if before is positions else both
    return layers, {name: at for name, at in chosen.items() if at is not None}


def select_layers(selection: LayerSelection, module: nn.Module, spec: str) -> tuple[Layer, ...]:
    """Return the selected layers of ``module``, which errors call ``spec``."""
    parsed = selection.parsed_in(names_in(module), positions=False)
    return _select(selection, [name for name, _ in parsed], module, spec)


def _select(
    selection: LayerSelection, patterns: list[str], module: nn.Module, spec: str
) -> tuple[Layer, ...]:
    return select(
        module,
        patterns,
        types=selection.types,
        depth=selection.depth,
        leaves=selection.leaves,
        spec=spec,
    )


def _build_input(request: InputRequest, loaded: LoadedModel, seed: int) -> Batch:
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
        chat=request.chat,
    )
    log.info("%s", batch.note)
    return batch


def _placed(
    loaded: LoadedModel, run: RunOptions, dtype: torch.dtype | None
) -> tuple[nn.Module, torch.device]:
    """The model where it runs, in ``dtype``, and the device of its input."""
    if run.device_map is not None:
        from hookscope.execution.device_dispatch import dispatch

        module = loaded.module.to(dtype=dtype)  # first: the dtype decides what fits
        return module, dispatch(module, run.device_map, run.max_memory)
    if loaded.source == ONNX:
        from hookscope.sources.onnx.graph_modules import GraphModel

        assert isinstance(loaded.module, GraphModel)
        name = "cpu" if run.device in (None, "auto") else run.device
        loaded.module.compute_on(_parse_device(name))
        return loaded.module, torch.device("cpu")  # where its values are
    live = loaded.source == LIVE
    device = _choose_device(run.device, loaded.module, live=live)
    return _move_model(loaded.module, device, dtype, live=live), device


def _accelerators() -> dict[str, bool]:
    """Whether this torch can use them."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def _parse_device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "meta":
        raise RequestError(f"{name} is not a device with memory.", "Use cpu, cuda, cuda:1 or mps.")
    return device


def usable_device(name: str | torch.device) -> torch.device:
    """Return a device by name, which torch can use."""
    device = _parse_device(name)
    if not _accelerators().get(device.type, True):
        raise EnvironmentFault(
            f"There is no {device.type} device that this torch can use.",
            "Use --device cpu, or install a torch built for it.",
        )
    return device


def _choose_device(name: str | None, module: nn.Module, *, live: bool) -> torch.device:
    if device := dispatch_device(modules_in(module)):
        if name is not None:
            raise RequestError(
                "The model is split across devices by accelerate and cannot be moved.",
                "Leave out --device, or dispatch the model to other devices.",
            )
        return device
    if name is None and live:
        return next((t.device for t in module.parameters()), torch.device("cpu"))
    accelerator = next((kind for kind, available in _accelerators().items() if available), None)
    if name == "auto":
        name = accelerator or "cpu"
        log.info("device: %s", name)
    device = usable_device(name or "cpu")
    if device.type == "cpu" and accelerator:
        log.info("device: cpu; a %s device is available (--device %s)", accelerator, accelerator)
    return device


def _move_model(
    module: nn.Module, device: torch.device, dtype: torch.dtype | None, *, live: bool
) -> nn.Module:
    """The model on ``device`` in ``dtype``; a live module is copied before it is moved."""
    modules = modules_in(module)
    if dispatch_device(modules):
        if dtype is not None:
            raise RequestError(
                "The model is split across devices by accelerate, and its dtype cannot be changed.",
                "Leave out --dtype, or load the model in that dtype.",
            )
        return module
    members = chain.from_iterable((*m._parameters.values(), *m._buffers.values()) for m in modules)
    tensors = [tensor for tensor in members if tensor is not None]
    in_place = all(
        t.device == device and (dtype is None or not t.is_floating_point() or t.dtype == dtype)
        for t in tensors
        if not t.is_meta  # it has no values to move
    )
    if in_place:
        return module
    if device.type != "meta" and any(tensor.is_meta for tensor in tensors):
        raise RequestError(
            "A part of the model is on the meta device, where tensors have no values, so the model"
            " cannot be moved or cast.",
            "Load the missing weights first.",
        )
    if live:
        repair = "Move it before you pass it: model.to(...)."
        module = copy_model(module, "to be moved", repair)
    return module.to(device=device, dtype=dtype)


def check_generation(module: nn.Module, spec: str, steps: int, method: str | None) -> None:
    """Check that a model can generate ``steps`` tokens."""
    if steps < 1:
        raise RequestError(f"{steps!r} is not a valid number of tokens.", "Use 1 or more.")
    if not callable(getattr(module, "generate", None)):
        raise RequestError(
            f"{spec} has no method generate, so it cannot generate tokens.",
            "Leave out --generate, or use a model with a language modeling head.",
        )
    if method not in (None, "forward"):
        raise RequestError(
            "--generate and --method cannot be used together.", "Leave out one of them."
        )


def generate(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], steps: int
) -> Any:
    """Return what ``module.generate`` returns for ``steps`` new tokens, chosen greedily."""
    function: Any = module.generate
    parameters = signature_of(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    greedy = {"do_sample": False} if open_ended or "do_sample" in parameters else {}
    return function(*args, **kwargs, max_new_tokens=steps, **greedy)
