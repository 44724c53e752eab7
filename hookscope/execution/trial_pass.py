"""A forward pass on the meta device: the shapes of a recording and the order of its calls.

If a pass succeeds, reads no value and draws no random number on the host, the number and the order
of the calls do not depend on data.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode

from hookscope.errors import CheckFailed
from hookscope.execution.isolation import random_state, seeded
from hookscope.execution.prepare import Prepared
from hookscope.hooks.capture import Capture
from hookscope.hooks.hook_set import depth_readers, hook_depth
from hookscope.hooks.layers import Layer, layers_of, own_parameters
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import ShapeSink
from hookscope.hooks.torch_state import FunctionMode
from hookscope.sources.meta import meta_copy
from hookscope.specs.model_spec import LIVE, TIMM, TORCHVISION
from hookscope.specs.module_names import ancestors
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import PARAM_GRAD
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors, opaque_types, walk

_IS_META: Any = Tensor.is_meta
_PLACES: Any = (Tensor.device, Tensor.is_cpu, Tensor.is_cuda, Tensor.is_mps, Tensor.is_xpu)
_MEMORY: Any = (
    Tensor.data_ptr,
    Tensor.get_device,
    Tensor.storage,
    Tensor.type,
    Tensor.untyped_storage,
)
log = logging.getLogger("hookscope")
LARGE = 10**9  # bytes from which on the size of a recording is logged before it is made
# A pass on the meta device makes PyTorch import its compiler, which takes as long as half of
# ``import torch``. torchvision, which timm needs too, imports it anyway. For other models the pass
# is made without a request only if the model or its input is large enough to be worth it.
_COMPILER_IS_LOADED = (TORCHVISION, TIMM)
_LARGE_MODEL, _LARGE_INPUT = 1 << 28, 1 << 23


@dataclass(frozen=True)
class CallOrder:
    """The calls of the selected layers in every run of a model on inputs of the same shapes."""

    calls: Mapping[str, int]
    last: tuple[str, int]
    later: tuple[str, ...]
    is_certain: bool = True


@dataclass(frozen=True)
class TrialPass:
    """What a pass showed."""

    capture: Capture
    order: CallOrder | None
    doubt: str = ""


def record_shapes(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    value: Any,
    device: torch.device | str,
    *,
    caches: bool = False,
    watch: _CallWatch | None = None,
) -> Capture:
    """Run a model and return the shapes and dtypes of what its layers give."""
    args, kwargs = as_call(map_tensors(value, lambda path, tensor: tensor.to(device)))
    recorder = Recorder(module, layers, kinds, sink=ShapeSink(), caches=caches)
    watching = nullcontext() if watch is None else watch.over(recorder)
    with grad_mode(False), recorder as capture, watching:
        module(*args, **kwargs)
    return capture


class TrialModel:
    """A copy of a model on the meta device; its passes change nothing in the model."""

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[Layer],
        *,
        train: bool,
        seed: int,
        follow: bool = True,
    ) -> None:
        names = {layer.name for layer in layers}
        self._model, self._seed = module, seed
        self._copy = meta_copy(module)
        if any(part.training != train for part in self._copy.modules()):
            self._copy.train(train)
        every = layers_of(self._copy)
        self._layers = [layer for layer in every if layer.name in names]
        self._watched = _outer_layers(every, names) if follow else []

    def run(self, kinds: Iterable[str], value: Any, *, caches: bool = False) -> TrialPass:
        """Run the copy on inputs of the shapes of ``value``."""
        watch = _CallWatch(self._layers, self._watched) if self._watched else None
        # With the model's own generators, so that a draw on a GPU by name changes nothing either.
        with seeded(self._model, self._seed):
            capture = record_shapes(
                self._copy, self._layers, kinds, value, "meta", caches=caches, watch=watch
            )
        if watch is None or watch.doubt:
            return TrialPass(capture, None, "" if watch is None else watch.doubt)
        return TrialPass(capture, watch.order())


def _outer_layers(layers: Sequence[Layer], selected: Collection[str]) -> list[Layer]:
    """The layers without those inside a module that runs as a whole and has no selected layer.

    Hooks on all modules would take a quarter of the time of the pass.
    """
    above = {outer for name in selected for outer in ancestors(name)} | {ROOT}
    whole: set[str] = set()
    kept: list[Layer] = []
    for layer in layers:  # parents come before their children
        if whole.isdisjoint(ancestors(layer.name)):
            kept.append(layer)
            module = layer.module
            # A parent may call the children of these instead of the module itself.
            opens = isinstance(module, nn.Sequential) or type(module).forward is nn.Module.forward
            if layer.name not in above and not opens:
                whole.add(layer.name)
    return kept


class _CallWatch(CallSubscriber):
    """Follows the calls of a pass."""

    def __init__(self, selected: Sequence[Layer], watched: Sequence[Layer]) -> None:
        self._selected = {layer.module for layer in selected}
        self._watched = watched
        self._calls: dict[str, int] = {}
        self._last: tuple[str, int] | None = None
        self._begun: dict[str, None] = {}
        self._begun_at_last = 0
        self._thread = threading.get_ident()
        self.doubt = ""
        self.reads_device = False

    @contextmanager
    def over(self, recorder: Recorder) -> Iterator[None]:
        """Follow the calls that ``recorder`` numbers in the block."""
        layers, state = recorder.layers, random_state()
        calls = recorder.calls.subscribed(self, self._watched)
        depth_readers.add(self)  # to tell what our own hooks read
        try:
            with calls, FunctionMode(_ReadWatch(self)):
                yield
        finally:
            depth_readers.discard(self)
        if random_state() != state:
            self.depends_on("random numbers are drawn on the host")
        if recorder.layers != layers:
            self.depends_on("modules are created during the run")

    def depends_on(self, reason: str) -> None:
        """Note a reason why the calls may depend on data."""
        self.doubt = self.doubt or reason

    def before_call(self, call: ModuleCall) -> None:
        """Note that a call begins."""
        if threading.get_ident() != self._thread:
            self.depends_on("modules are called by several threads")
        self._begun.setdefault(call.layer.name)

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Note that a call of a selected layer ends."""
        layer = call.layer
        if layer.module in self._selected and call.number:
            self._calls[layer.name] = max(call.number, self._calls.get(layer.name, 0))
            self._last = layer.name, call.number
            self._begun_at_last = len(self._begun)

    def order(self) -> CallOrder | None:
        """The order of the calls; None if no selected layer was called."""
        if self._last is None:
            return None
        later = dict.fromkeys(list(self._begun)[self._begun_at_last :])
        outermost = (name for name in later if not later.keys() & ancestors(name))
        return CallOrder(self._calls, self._last, tuple(outermost), not self.reads_device)


class _ReadWatch(TorchFunctionMode):
    """Reports functions that raise, and reads of what differs on the meta device.

    A model may catch the error, or take another branch than with values.
    """

    def __init__(self, watch: _CallWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is disabled
        if getattr(func, "__self__", None) is _IS_META and not hook_depth():
            self._watch.depends_on("the model asks whether tensors have values")
        elif _is_of_device(func) and not _is_trusted(sys._getframe(1)):
            self._watch.reads_device = True
        if kwargs and kwargs.get("generator") is not None:
            self._watch.depends_on("random numbers are drawn from a generator of its own")
        if func is batch_norm and _keeps_shape(*args, **kwargs or {}):
            return torch.empty_like(args[0])
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            name = getattr(func, "__name__", "a function")
            self._watch.depends_on(f"{name}: {type(error).__name__}")
            raise


def _keeps_shape(
    x: Any,
    mean: Any = None,
    var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: Any = None,
    **others: Any,
) -> bool:
    """Whether a batch normalization that fits its input runs in eval mode.

    What it returns then needs no computation, which takes most of the time of a trial pass.
    """
    if training is not False or type(x) is not Tensor or not x.is_meta or x.ndim < 2:
        return False
    known = [y for y in (mean, var, weight, bias) if isinstance(y, Tensor)]
    return isinstance(mean, Tensor) and all(
        y.is_meta and y.dtype is x.dtype and y.shape == x.shape[1:2] for y in known
    )


def _is_of_device(function: Any) -> bool:
    """Whether a function reads the device or the memory of a tensor."""
    return getattr(function, "__self__", None) in _PLACES or function in _MEMORY


def _is_trusted(frame: FrameType) -> bool:
    """Whether code runs the same modules on every device: PyTorch, and our exported programs."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(("torch.", "hookscope.sources.exported."))


def trial_pass(prepared: Prepared, kinds: Iterable[str], *, follow: bool) -> TrialPass | None:
    """Run a copy of the model on the meta device; return None if that fails."""
    forward_kinds = {kind.removesuffix(".grad") for kind in kinds}
    try:
        model = TrialModel(
            prepared.module,
            prepared.layers,
            train=bool(prepared.train),
            seed=prepared.seed,
            follow=follow,
        )
        return model.run(
            forward_kinds - {"param"},
            prepared.value,
            caches=forward_kinds == set(kinds),  # as in a recording without gradients
        )
    except (Exception, SystemExit):  # the run itself will report the model's errors
        return None


def check_recording_size(
    prepared: Prepared,
    kinds: Iterable[str],
    max_bytes: int | None,
    *,
    stop: bool | None = False,
) -> CallOrder | None:
    """Log the size of a large recording before it is made, and reject one over ``max_bytes``.

    A live or a small model runs an extra time only if there is a limit or the run is to stop.
    """
    kinds = frozenset(kinds)
    measured = not prepared.positions  # they depend on values
    if prepared.loaded.source == LIVE:
        measured = measured and max_bytes is not None
        # A pass without values must not write to an object that the run itself will get.
        stop = stop and not opaque_types(as_call(prepared.value))
    if prepared.generate is not None or not (measured or stop):
        return None
    if max_bytes is None and not stop and _is_small(prepared):
        return None
    trial = trial_pass(prepared, kinds, follow=stop is not False)
    if trial is None:
        return None
    if measured:
        _check_bytes(trial.capture.nbytes + _weight_bytes(prepared, kinds), max_bytes)
    return None if stop is False else trial.order


def _is_small(prepared: Prepared) -> bool:
    """Whether a pass would take longer than a run of the model, most likely."""
    module = prepared.module
    return (
        prepared.loaded.source not in _COMPILER_IS_LOADED
        and _bytes(chain(module.parameters(), module.buffers())) < _LARGE_MODEL
        and _bytes(tensor for _, tensor in walk(as_call(prepared.value))) < _LARGE_INPUT
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _weight_bytes(prepared: Prepared, kinds: frozenset[str]) -> int:
    """The size of the gradients of parameters."""
    if PARAM_GRAD not in kinds:
        return 0
    return _bytes({p for layer in prepared.layers for p in own_parameters(layer.module).values()})


def _check_bytes(expected: int, max_bytes: int | None) -> None:
    if max_bytes is not None and expected > max_bytes:
        raise CheckFailed(
            f"Recording this takes {expected:,} bytes, more than the limit of {max_bytes:,}.",
            "Choose fewer layers with --layer, or raise --max-bytes.",
        )
    if expected >= LARGE:
        log.info("size: about %.1f GB will be recorded and written", expected / 1e9)
