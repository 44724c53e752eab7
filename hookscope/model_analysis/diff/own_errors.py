"""The error that each module of B makes by itself, with the values of A everywhere else.

The idea: a module of B is called with the inputs that its counterpart got in A, and whatever called
it gets A's output in place of its own. So nothing that one module computes differently reaches
another one. What is left of a difference is made in the module itself: by its own operations on the
way to the modules within it, or from their outputs to its own. One run of each model is enough, as
in teacher forcing: A is the teacher, B the student, and they run in lockstep.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.model_analysis.diff.lockstep import Lockstep
from hookscope.results.records import key_of
from hookscope.specs.diff_request import label_errors
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import detach_clone, map_tensors, walk
from hookscope.tensors.tensor_stats import dense_real, euclidean_norm
from hookscope.tensors.threads import as_this_thread

CallId = tuple[str, int]  # the name of a module and the number of its call, from 1


@dataclass
class OwnErrors:
    """What a module computes otherwise than its counterpart, although it gets the same values.

    ``errors`` has the relative error of each tensor, under its key in A: of the outputs, and of
    what is passed to the modules within it. ``unmatched`` has the keys of tensors that only one of
    the two gets or returns.
    """

    errors: dict[str, float] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Casting:
    """The dtype of a student that is a copy of the teacher, and the modules that kept theirs."""

    dtype: torch.dtype
    kept: frozenset[str]


def own_errors(
    teacher: Prepared,
    student: Prepared,
    pairs: Mapping[CallId, CallId],
    casting: Casting | None = None,
) -> dict[CallId, OwnErrors]:
    """Run both models in lockstep; return what each paired call of the student does by itself.

    ``pairs`` has the call in the teacher for each call of the student. The keys of the result are
    calls of the teacher, in the order in which the student made them.
    """
    gpus = sorted({*gpus_of(teacher.module), *gpus_of(student.module)})
    with teacher.preserved(), student.preserved():
        exchange = _Exchange(Lockstep(gpus))
        source = _Teacher(exchange, set(pairs.values()), gpus)
        sink = _Student(exchange, pairs, gpus, casting)
        runs = []
        for model, label in ((teacher, 0), (student, 1 if casting is None else 0)):
            runs.append(as_this_thread(partial(_run, model, label)))
        with (
            _subscribed(teacher.module, source, {name for name, _ in pairs.values()}),
            _subscribed(student.module, sink, {name for name, _ in pairs}),
        ):
            exchange.lockstep.run((runs[0], runs[1]))
    return dict(sink.found)


def _run(model: Prepared, side: int) -> None:
    with label_errors(side), grad_mode(False):
        forward(model)


def _subscribed(
    model: nn.Module, subscriber: CallSubscriber, names: set[str]
) -> AbstractContextManager[None]:
    layers = [layer for layer in layers_of(model) if layer.name in names]
    return CallRegistry(model).subscribed(subscriber, layers)


@dataclass
class _CallValues:
    """A call of the teacher: its arguments, the random generators before it, and its results."""

    arguments: dict[str, Any]
    random: list[Tensor]
    output: Any = None
    # What the module has written into its arguments.
    changed: dict[str, Tensor] = field(default_factory=dict)


class _Exchange:
    """The values of the teacher that the student has not taken yet."""

    def __init__(self, lockstep: Lockstep) -> None:
        self.lockstep = lockstep
        self._begun: dict[CallId, _CallValues] = {}
        self._ended: set[CallId] = set()

    def begin(self, call: CallId, values: _CallValues) -> None:
        """Offer the arguments of a call, and let the student run."""
        self._begun[call] = values
        self.lockstep.hand_over(0)

    def end(self, call: CallId) -> None:
        """Offer the results of a call, and let the student run."""
        self._ended.add(call)
        self.lockstep.hand_over(0)

    def arguments(self, call: CallId) -> _CallValues | None:
        """Return a call that has begun; None if the teacher does not make it."""
        while call not in self._begun and not self.lockstep.has_ended(0):
            self.lockstep.hand_over(1)
        return self._begun.get(call)

    def results(self, call: CallId) -> _CallValues | None:
        """Return a call that has ended, and forget it; None if it failed in the teacher."""
        while call not in self._ended and not self.lockstep.has_ended(0):
            self.lockstep.hand_over(1)
        values = self._begun.pop(call, None)
        return values if call in self._ended else None


class _Teacher(CallSubscriber):
    """Offers the values of the calls that have a counterpart."""

    def __init__(self, exchange: _Exchange, wanted: set[CallId], gpus: list[int]) -> None:
        self._exchange, self._wanted, self._gpus = exchange, wanted, gpus

    def before_call(self, call: ModuleCall) -> tuple[_CallValues, dict[str, int]] | None:
        """Offer the arguments."""
        name = (call.layer.name, call.number)
        if name not in self._wanted or self._exchange.lockstep.has_ended(1):
            return None
        arguments = _named_arguments(call.module, call.args, call.kwargs)
        versions = {path: _version(tensor) for path, tensor in _paths(arguments)}
        values = _CallValues(detach_clone(arguments), _random_states(self._gpus))
        self._exchange.begin(name, values)
        return values, versions

    def after_call(
        self, call: ModuleCall, state: tuple[_CallValues, dict[str, int]] | None
    ) -> None:
        """Offer the results."""
        if state is None or call.failed:
            return
        values, versions = state
        for path, tensor in _paths(_named_arguments(call.module, call.args, call.kwargs)):
            if versions.get(path) != _version(tensor):
                values.changed[path] = tensor.detach().clone()
        values.output = detach_clone(call.output)
        self._exchange.end((call.layer.name, call.number))


class _Student(CallSubscriber):
    """Replaces the arguments and the outputs of paired calls, and notes how they differed."""

    def __init__(
        self,
        exchange: _Exchange,
        pairs: Mapping[CallId, CallId],
        gpus: list[int],
        casting: Casting | None,
    ) -> None:
        self._casting = casting
        self.found: defaultdict[CallId, OwnErrors] = defaultdict(OwnErrors)
        self._exchange, self._pairs, self._gpus = exchange, pairs, gpus
        self._open: list[CallId] = []

    def before_call(self, call: ModuleCall) -> tuple[CallId, dict[str, Any]] | None:
        """Give the module the arguments of its counterpart."""
        pair = self._pairs.get((call.layer.name, call.number))
        values = None if pair is None else self._exchange.arguments(pair)
        if pair is None or values is None:
            return None
        own = _named_arguments(call.module, call.args, call.kwargs)
        replaced = self._compare(pair, INPUT, own, values.arguments)
        self._open.append(pair)
        self.found[pair] = OwnErrors()
        call.args, call.kwargs = _with_tensors((call.args, call.kwargs), replaced)
        _set_random_states(values.random, self._gpus)
        return pair, own

    def after_call(self, call: ModuleCall, state: tuple[CallId, dict[str, Any]] | None) -> None:
        """Give the caller the output of the counterpart, and what that wrote into its arguments."""
        if state is None:
            return
        pair, own = state
        values = self._exchange.results(pair)
        if values is not None and not call.failed:
            replaced = self._compare(pair, OUTPUT, call.output, values.output)
            call.output = _with_tensors(call.output, replaced)
            for path, tensor in _paths(own):
                if path in values.changed and values.changed[path].shape == tensor.shape:
                    with suppress(RuntimeError):  # a tensor whose entries share memory
                        tensor.copy_(values.changed[path])
        self.abandon_call(call, state)

    def abandon_call(self, call: ModuleCall, state: tuple[CallId, dict[str, Any]] | None) -> None:
        """Forget a call, and those within it."""
        if state is not None and state[0] in self._open:
            del self._open[self._open.index(state[0]) :]

    def _compare(self, pair: CallId, kind: str, own: Any, other: Any) -> dict[int, Tensor]:
        """Note the errors of tensors; return what replaces each, by its ``id``."""
        # What a module gets is the work of the innermost call around it.
        owner = pair if kind == OUTPUT else self._open[-1] if self._open else None
        replaced = {}
        for path, mine, theirs in _matched(own, other):
            key = key_of(*pair, ".".join((kind, path)) if path else kind)
            if mine is None or theirs is None:
                self.found[pair].unmatched.append(key)
            elif id(mine) not in replaced:
                if owner is not None:
                    self.found[owner].errors[key] = relative_error(theirs, mine)
                dtype = self._dtype(pair, kind, mine, theirs)
                replaced[id(mine)] = theirs.to(mine.device, dtype, copy=True)
        return replaced

    def _dtype(self, pair: CallId, kind: str, mine: Tensor, theirs: Tensor) -> torch.dtype:
        """The dtype of what replaces a tensor: its own, but at the borders of kept modules."""
        casting = self._casting
        if casting is None or pair[0] not in casting.kept:
            return mine.dtype
        return theirs.dtype if kind == INPUT or not mine.is_floating_point() else casting.dtype


def relative_error(a: Tensor, b: Tensor) -> float:
    """Return ``|a - b| / |a|`` with Euclidean norms, in double precision.

    Entries that are equal in both count as no error, infinite ones too. The result is infinite if
    an entry is finite in one of the two alone, or if A is zero and B is not.

    Example:
        >>> relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
        0.1
        >>> relative_error(torch.zeros(2), torch.zeros(2))
        0.0
    """
    if a.dtype == b.dtype and a.device == b.device and torch.equal(a, b):
        return 0.0
    a, b = (_real_numbers(x) for x in (a, b.to(a.device)))
    is_equal = (a == b) | (a.isnan() & b.isnan())
    error = euclidean_norm(torch.where(is_equal, 0.0, a - b)).item()
    size = euclidean_norm(torch.where(a.isfinite(), a, 0.0)).item()
    if error == 0.0 or not math.isfinite(error):
        return error if error == 0.0 else math.inf
    return error / size if size else math.inf


def _real_numbers(x: Tensor) -> Tensor:
    """The values in double precision; a complex number is two of them."""
    x = x.detach()
    return dense_real(torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double()


def _named_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call under the names of the parameters of ``forward``."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # a function of C++, or a call that will fail
        return {**{str(number): value for number, value in enumerate(args)}, **kwargs}


def _paths(value: Any) -> Iterator[tuple[str, Tensor]]:
    for path, tensor in walk(value, whole=True):
        yield ".".join(path), tensor


def _matched(own: Any, other: Any) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    """Each tensor of ``own`` with that of ``other``; None for one that has no counterpart.

    They match by their paths, and the rest by order and shape: a port may have other names.
    """
    mine, theirs = dict(_paths(own)), dict(_paths(other))
    renamed = [path for path in theirs if path not in mine]
    for path, tensor in mine.items():
        partner = path if path in theirs else ""
        if path not in theirs:
            shaped = (name for name in renamed if theirs[name].shape == tensor.shape)
            partner = next(shaped, "")
            if partner:
                renamed.remove(partner)
        found = theirs.get(partner)
        yield path, tensor, found if found is not None and found.shape == tensor.shape else None
    yield from ((path, None, theirs[path]) for path in renamed)


def _with_tensors(value: Any, replaced: Mapping[int, Tensor]) -> Any:
    return map_tensors(value, lambda path, tensor: replaced.get(id(tensor), tensor))


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; 0 for one of inference mode, which does not know."""
    return 0 if tensor.is_inference() else tensor._version


def _random_states(gpus: list[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


def _set_random_states(states: list[Tensor], gpus: list[int]) -> None:
    torch.set_rng_state(states[0])
    for gpu, state in zip(gpus, states[1:], strict=True):
        torch.cuda.set_rng_state(state, gpu)
