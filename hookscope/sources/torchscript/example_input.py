"""An example input of a scripted or traced model, from its file or guessed and tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.files.signal_safety import signal_safe
from hookscope.sources.layouts import BATCH, LIST, PAIR, Layout
from hookscope.sources.meta import meta_copy
from hookscope.sources.torchscript.graph import Argument
from hookscope.sources.torchscript.module_builder import ScriptedModule
from hookscope.sources.torchscript.script_archive import ArchiveTensor, ScriptArchive
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors

# Common sides of images, the most common first.
_SIDES = (224, 32, 28, 64, 96, 128, 256, 384, 512, 16, 8)
_LENGTHS = (1024, 16000, 128, 16)


@dataclass(frozen=True)
class ExampleInput:
    """The input of a model if the user gives none."""

    shape: tuple[int, ...] | None
    layout: Layout
    make: Callable[[], Any] | None
    text: str = ""


def find_example(module: nn.Module, archive: ScriptArchive, spec: str, method: str) -> ExampleInput:
    """Return the example input of ``module``; the module does not run before it is made."""
    traced = archive.traced_inputs(method)
    if traced is not None and all(isinstance(record, ArchiveTensor) for record in traced):
        if len(traced) == 1 and traced[0].storage.dtype.is_floating_point:
            return ExampleInput(traced[0].shape, BATCH, None)
        text = "noise, and zeros for integers, of the shapes it was traced with"
        return ExampleInput(None, BATCH, partial(_traced_noise, traced), text)
    layout = _layout(module)
    guess = cache(partial(_guess, module, layout, spec))
    text = "noise of a guessed shape (--shape sets another)"
    return ExampleInput(None, layout, lambda: guess().make(layout), text)


def _traced_noise(records: tuple[ArchiveTensor, ...]) -> Any:
    return tuple(_noise(record.shape, record.storage.dtype) for record in records)


def _noise(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype)  # as a mask it hides nothing
    return torch.zeros(shape, dtype=dtype)


def _layout(module: nn.Module) -> Layout:
    types = [argument.type.text for argument in _required(module)]
    return {("List[Tensor]",): LIST, ("Tensor", "Tensor"): PAIR}.get(tuple(types), BATCH)


def _required(module: nn.Module) -> list[Argument]:
    """The required arguments of the method that a call runs."""
    assert isinstance(module, ScriptedModule)
    arguments = module._hookscope_signatures.get(module._hookscope_method, ())
    return [argument for argument in arguments if not argument.optional]


def _guess(module: nn.Module, layout: Layout, spec: str) -> ExampleCandidate:
    """Return the first likely shape with which the model runs on the meta device."""
    if layout is BATCH and [argument.type.text for argument in _required(module)] != ["Tensor"]:
        required = [f"{argument.name}: {argument.type.text}" for argument in _required(module)]
        takes = ", ".join(required) or "nothing"
        raise InputError(
            f"Cannot guess an input for {spec}, which takes {takes}.",
            "Call it from Python, with a tuple or a dict: hookscope.capture(FILE, input=(a, b))",
        )
    if layout is LIST:  # detectors read values, so a trial on meta fails
        return ExampleCandidate((3, 320, 320), torch.float32)
    candidates = list(_candidates(module))
    for candidate in candidates:
        if _runs(module, layout, candidate):
            return candidate
    if not candidates:
        raise InputError(
            f"Cannot tell from its weights what input {spec} expects.", "Give --shape or --input."
        )
    return candidates[0]


@dataclass(frozen=True)
class ExampleCandidate:
    """A shape and dtype that may be what a model takes."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def make(self, layout: Layout) -> Any:
        """Return the call value of this shape."""
        if self.dtype.is_floating_point:
            return layout.noise(self.shape, torch.initial_seed())  # the seed of the caller
        return torch.zeros(self.shape, dtype=self.dtype)


def _candidates(module: nn.Module) -> Iterator[ExampleCandidate]:
    """Shapes that fit the first weight, as the first layer most likely takes the input."""
    for owner in module.modules():
        weight = next((p for p in owner._parameters.values() if p is not None and p.ndim > 1), None)
        if weight is not None:
            break
    else:
        return
    channels = weight.shape[1]
    if "Embedding" in type(owner).__name__:
        yield ExampleCandidate((1, 8), torch.int64)
    elif weight.ndim == 2:
        yield ExampleCandidate((1, channels), weight.dtype)
        yield ExampleCandidate((1, 8, channels), weight.dtype)
    elif weight.ndim == 3:
        yield from (ExampleCandidate((1, channels, length), weight.dtype) for length in _LENGTHS)
    elif weight.ndim == 4:
        yield from (ExampleCandidate((1, channels, side, side), weight.dtype) for side in _SIDES)
    elif weight.ndim == 5:
        yield from (
            ExampleCandidate((1, channels, frames, side, side), weight.dtype)
            for frames in (16, 8)
            for side in (112, 224)
        )


def _runs(module: nn.Module, layout: Layout, candidate: ExampleCandidate) -> bool:
    value = map_tensors(candidate.make(layout), lambda path, tensor: tensor.to("meta"))
    args, kwargs = as_call(value)
    try:
        # Prints of a trial are dropped.
        with grad_mode(False), signal_safe(redirect_stdout(StringIO())):
            meta_copy(module)(*args, **kwargs)
    except Exception:  # any error of a shape that does not fit
        return False
    return True
