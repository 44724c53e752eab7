"""The error that each module of B makes by itself, with the values of A everywhere else.

The idea: a module of B is called with the inputs that its counterpart got in A, and whatever called
it gets A's output in place of its own. So nothing that one module computes differently reaches
another one. What is left of a difference is made in the module itself: by its own operations on the
way to the modules within it, or from their outputs to its own. One run of each model is enough, as
in teacher forcing: A is the teacher, B the student, and they run in lockstep.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.signatures import signature_of
from hookscope.hooks.layers import layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, what_of
from hookscope.hooks.registry import CallRegistry
from hookscope.model_analysis.diff.lockstep import Lockstep, Mixed
from hookscope.model_analysis.diff.tensor_errors import (
    in_place_of,
    real_numbers,
    relative_error,
)
from hookscope.results.records import key_of
from hookscope.specs.diff_sides import label_errors
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import TensorPath, map_tensors, walk
from hookscope.tensors.threads import as_this_thread

_RESHAPED = "its input has another shape in B"
CallId = tuple[str, int]  # the name of a module and the number of its call, from 1


@dataclass
class OwnErrors:
    """What a module computes otherwise than its counterpart, although it gets the same values.

    ``errors`` has the relative error of each tensor, under its key in A: of the outputs, and of
    what is passed to the modules within it. ``zeros`` has those whose error is infinite because A's
    tensor is exactly zero. ``unmatched`` has the keys of tensors that only one of the two gets or
    returns, and ``reason`` says why the errors mean nothing.
    """

    errors: dict[str, float] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    unmatched: list[str] = field(default_factory=list)
    reason: str = ""

    def add(self, key: str, a: Tensor, b: Tensor) -> None:
        """Note the error of a tensor."""
        self.errors[key] = relative_error(a, b)
        if math.isinf(self.errors[key]) and not real_numbers(a).any():
            self.zeros.add(key)


@dataclass(frozen=True)
class Casting:
    """The dtype of a student that is a copy of the teacher, and the modules that kept theirs."""

    dtype: torch.dtype
    kept: frozenset[str]


class CallPairs:
    """Which call of the teacher belongs to a call of the student."""

    def __init__(self, known: Mapping[CallId, CallId]) -> None:
        self._known = known
        self._made = set(known.values())
        self.names = {name for name, _ in self._made}, {name for name, _ in known}

    def has(self, call: CallId) -> bool:
        """Whether a call of the teacher belongs to one of the student."""
        return call in self._made

    def of(self, call: CallId) -> CallId | None:
        """Return the call of the teacher that belongs to one of the student."""
        return self._known.get(call)


class SameCalls(CallPairs):
    """Calls with one number, of modules with one name."""

    def __init__(self, names: set[str]) -> None:
        super().__init__({})
        self.names = names, names

    def has(self, call: CallId) -> bool:
        """Whether the module is one of those."""
        return call[0] in self.names[0]

    def of(self, call: CallId) -> CallId | None:
        """Return the call itself."""
        return call if self.has(call) else None


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
        lockstep = Lockstep(gpus)
        taught = TaughtRun(teacher, student, CallPairs(pairs), lockstep, 1, gpus, casting)
        with taught.attached():
            teach = as_this_thread(partial(_run, teacher, 0))
            try:
                lockstep.run((teach, as_this_thread(taught.run)))
            except Mixed:
                raise _mixed(casting) from None
    return taught.found


def _mixed(casting: Casting | None) -> RequestError:
    cause = "a function in it refers to the original"
    if casting is not None:
        return RequestError(
            f"A copy of A in {casting.dtype} calls modules of A itself, because {cause}.",
            "Write --floor none, which needs no copy.",
        )
    return RequestError(
        f"B calls modules of A. If B is a copy of A, {cause}.", "Build B anew, without copying A."
    )


class TaughtRun:
    """A run of the student that takes the values of the teacher, which runs in lockstep with it.

    The teacher is function 0 of ``lockstep``, and the student is function ``number``.
    """

    def __init__(
        self,
        teacher: Prepared,
        student: Prepared,
        pairs: CallPairs,
        lockstep: Lockstep,
        number: int,
        gpus: list[int],
        casting: Casting | None = None,
    ) -> None:
        exchange = _Exchange(lockstep, number)
        self._models, self._names, self._is_cast = (teacher, student), pairs.names, bool(casting)
        self._teacher = _Teacher(exchange, pairs, gpus)
        self._student = _Student(exchange, pairs, gpus, casting)

    @signal_safe_contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the hooks to both models."""
        teacher, student = self._models
        with (
            _subscribed(teacher.module, self._teacher, self._names[0]),
            _subscribed(student.module, self._student, self._names[1]),
        ):
            yield

    def run(self) -> None:
        """Run the student, in its thread."""
        _run(self._models[1], 0 if self._is_cast else 1)

    @property
    def found(self) -> dict[CallId, OwnErrors]:
        """The errors of each call, under that of the teacher."""
        return dict(self._student.found)


def _run(model: Prepared, side: int) -> None:
    with label_errors(side), grad_mode(False):
        forward(model)


def _subscribed(
    model: nn.Module, subscriber: CallSubscriber, names: set[str]
) -> AbstractContextManager[None]:
    layers = [layer for layer in layers_of(model) if layer.name in names]
    return CallRegistry(model).subscribed(subscriber, layers)


class _Passed(NamedTuple):
    """A tensor in the arguments or the output of a call."""

    name: TensorPath  # with the names of parameters, by which the two calls are matched
    path: TensorPath  # as in the name of a record
    tensor: Tensor


@dataclass
class _CallValues:
    """A call of the teacher: what it gets and returns, and the random generators."""

    arguments: list[_Passed]
    random: list[Tensor]
    output: list[_Passed] = field(default_factory=list)
    changed: dict[TensorPath, Tensor] = field(default_factory=dict)  # in place, by their paths
    random_after: list[Tensor] = field(default_factory=list)
    is_taken: bool = False  # by the student


class _Exchange:
    """The values of the teacher that the student has not taken yet."""

    def __init__(self, lockstep: Lockstep, student: int) -> None:
        self.lockstep, self.student = lockstep, student
        self._begun: dict[CallId, _CallValues] = {}
        self._ended: set[CallId] = set()

    def begin(self, call: CallId, values: _CallValues) -> None:
        """Offer the arguments of a call and let the student run; copy what it does not take yet."""
        self._begun[call] = values
        self.lockstep.hand_over(0)
        if not values.is_taken:
            values.arguments = _copies(values.arguments)

    def end(self, call: CallId, values: _CallValues) -> None:
        """Offer the results of a call and let the student run; copy what it does not take yet."""
        self._ended.add(call)
        self.lockstep.hand_over(0)
        if call in self._begun:
            values.output = _copies(values.output)

    def arguments(self, call: CallId) -> _CallValues | None:
        """Return a call that has begun; None if the teacher does not make it."""
        while call not in self._begun and not self.lockstep.has_ended(0):
            self.lockstep.hand_over(self.student)
        values = self._begun.get(call)
        if values is not None:
            values.is_taken = True
        return values

    def results(self, call: CallId) -> _CallValues | None:
        """Return a call that has ended, and forget it; None if it failed in the teacher."""
        while call not in self._ended and not self.lockstep.has_ended(0):
            self.lockstep.hand_over(self.student)
        values = self._begun.pop(call, None)
        return values if call in self._ended else None


class _Teacher(CallSubscriber):
    """Offers the values of the calls that have a counterpart."""

    def __init__(self, exchange: _Exchange, pairs: CallPairs, gpus: list[int]) -> None:
        self._exchange, self._pairs, self._gpus = exchange, pairs, gpus

    def before_call(self, call: ModuleCall) -> tuple[_CallValues, list[_Passed], list[int]] | None:
        """Offer the arguments."""
        name = (call.layer.name, call.number)
        if not self._pairs.has(name) or self._exchange.lockstep.has_ended(self._exchange.student):
            return None
        arguments = _arguments(call)
        values = _CallValues(arguments, _random_states(self._gpus))
        self._exchange.begin(name, values)
        return values, arguments, [_version(one.tensor) for one in arguments]

    def after_call(
        self, call: ModuleCall, state: tuple[_CallValues, list[_Passed], list[int]] | None
    ) -> None:
        """Offer the results."""
        if state is None or call.failed:
            return
        values, arguments, versions = state
        for one, version in zip(arguments, versions, strict=True):
            if _version(one.tensor) != version:
                values.changed[one.path] = one.tensor.detach().clone()
        values.output = _outputs(call.output)
        values.random_after = _random_states(self._gpus)
        self._exchange.end((call.layer.name, call.number), values)


@dataclass
class _TaughtCall:
    """A call of the student that runs with the values of the teacher."""

    pair: CallId
    own: dict[TensorPath, Tensor]  # the arguments that its caller gave
    given: dict[TensorPath, tuple[Tensor, int, _Passed]]  # in their place, with their versions


class _Student(CallSubscriber):
    """Replaces the arguments and the outputs of paired calls, and notes how they differed."""

    def __init__(
        self,
        exchange: _Exchange,
        pairs: CallPairs,
        gpus: list[int],
        casting: Casting | None,
    ) -> None:
        self._casting = casting
        self.found: defaultdict[CallId, OwnErrors] = defaultdict(OwnErrors)
        self._exchange, self._pairs, self._gpus = exchange, pairs, gpus
        self._open: list[CallId] = []

    def before_call(self, call: ModuleCall) -> _TaughtCall | None:
        """Give the module the arguments of its counterpart."""
        pair = self._pairs.of((call.layer.name, call.number))
        values = None if pair is None else self._exchange.arguments(pair)
        if pair is None or values is None:
            return None
        self.found[pair]  # in the order of the calls
        own = _arguments(call)
        given = self._compare(pair, INPUT, own, values.arguments)
        self._open.append(pair)
        call.args, call.kwargs = _with_tensors((call.args, call.kwargs), given)
        _set_random_states(values.random, self._gpus)
        opened = {path: (new, _version(new), other) for path, (new, other) in given.items()}
        return _TaughtCall(pair, {one.path: one.tensor for one in own}, opened)

    def after_call(self, call: ModuleCall, state: _TaughtCall | None) -> None:
        """Give the caller the output of the counterpart, and what that wrote into its arguments."""
        if state is None:
            return
        values = self._exchange.results(state.pair)
        if values is not None and not call.failed:
            given = self._compare(state.pair, OUTPUT, _outputs(call.output), values.output)
            self._write_back(state, values)
            call.output = _with_tensors(call.output, given)
            _set_random_states(values.random_after, self._gpus)
        self.abandon_call(call, state)

    def _write_back(self, state: _TaughtCall, values: _CallValues) -> None:
        """Change the caller's tensors as the module has changed those in their place."""
        for path, (tensor, version, other) in state.given.items():
            if _version(tensor) == version:
                continue
            changed = values.changed.get(other.path)
            if changed is not None:
                key = key_of(*state.pair, what_of(INPUT, other.path))
                self.found[state.pair].add(key, changed, tensor)
            with suppress(RuntimeError):  # a tensor whose entries share memory
                state.own[path].copy_(tensor if changed is None else changed)

    def abandon_call(self, call: ModuleCall, state: _TaughtCall | None) -> None:
        """Forget a call, and those within it."""
        if state is not None and state.pair in self._open:
            del self._open[self._open.index(state.pair) :]

    def _compare(
        self, pair: CallId, kind: str, own: list[_Passed], other: list[_Passed]
    ) -> dict[TensorPath, tuple[Tensor, _Passed]]:
        """Note the errors of tensors; return what replaces each, by its path in the student."""
        # What a module gets is the work of the innermost call around it.
        owner = pair if kind == OUTPUT else self._open[-1] if self._open else None
        replaced: dict[TensorPath, tuple[Tensor, _Passed]] = {}
        made: dict[tuple[int, int], Tensor] = {}  # a tensor that is passed twice stays one tensor
        for mine, theirs in _matched(own, other):
            known = theirs or mine
            assert known is not None
            key = key_of(*pair, what_of(kind, known.path))
            if mine is None or theirs is None:
                self.found[pair].unmatched.append(key)
            elif mine.tensor.shape != theirs.tensor.shape:
                self.found[pair].unmatched.append(key)
                if kind == OUTPUT:
                    self.found[pair].errors[key] = math.inf
                elif mine is own[0]:  # of a mask, only the shape may differ
                    self.found[pair].reason = _RESHAPED
            elif kind == INPUT and _numbers_of(mine.tensor) != _numbers_of(theirs.tensor):
                # A mask is additive for one kernel and of bools for another.
                self.found[pair].unmatched.append(key)
            else:
                both = (id(mine.tensor), id(theirs.tensor))
                if both not in made:
                    dtype = self._dtype(pair, kind, mine.tensor, theirs.tensor)
                    made[both] = in_place_of(mine.tensor, theirs.tensor, dtype)
                if owner is not None:
                    # What a module gets is not rounded again by the one that passes it on.
                    passes = kind == INPUT and mine.tensor.is_quantized
                    is_same = made[both] is mine.tensor
                    expected = made[both] if passes or is_same else theirs.tensor
                    self.found[owner].add(key, expected, mine.tensor)
                replaced[mine.path] = made[both], theirs
        if kind == OUTPUT and other and not replaced:
            self.found[pair].errors[key_of(*pair, OUTPUT)] = math.inf
        return replaced

    def _dtype(self, pair: CallId, kind: str, mine: Tensor, theirs: Tensor) -> torch.dtype:
        """The dtype of what replaces a tensor: its own, but at the borders of kept modules."""
        casting = self._casting
        if casting is None or pair[0] not in casting.kept:
            return mine.dtype
        return theirs.dtype if kind == INPUT or not mine.is_floating_point() else casting.dtype


def _arguments(call: ModuleCall) -> list[_Passed]:
    """The tensors in the arguments of a call."""
    try:
        names = list(signature_of(call.module.forward).parameters)
    except (TypeError, ValueError):  # a function of C++
        names = []
    found = []
    for path, tensor in walk((call.args, call.kwargs), whole=True):
        place, name, *rest = path
        if place == "0" and int(name) < len(names):
            name = names[int(name)]
        found.append(_Passed((name, *rest), path, tensor))
    return found


def _numbers_of(x: Tensor) -> tuple[bool, bool, bool]:
    """What kind of numbers a tensor has."""
    return x.is_floating_point() or x.is_quantized, x.is_complex(), x.dtype is torch.bool


def _outputs(value: Any) -> list[_Passed]:
    return [_Passed(path, path, tensor) for path, tensor in walk(value, whole=True)]


def _copies(passed: list[_Passed]) -> list[_Passed]:
    """Clones of the tensors; one that is passed twice is cloned once."""
    clones: dict[int, Tensor] = {}
    for one in passed:
        if id(one.tensor) not in clones:
            clones[id(one.tensor)] = one.tensor.detach().clone()
    return [one._replace(tensor=clones[id(one.tensor)]) for one in passed]


def _matched(
    own: list[_Passed], other: list[_Passed]
) -> Iterator[tuple[_Passed | None, _Passed | None]]:
    """Each tensor of ``own`` with that of ``other``; None for one that has no counterpart.

    They match by their names, and the rest by order and shape: a port may have other names.
    """
    theirs = {one.name: one for one in other}
    names = {one.name for one in own}
    renamed = [one for one in other if one.name not in names]
    for mine in own:
        partner = theirs.get(mine.name)
        if partner is None:
            shaped = (one for one in renamed if one.tensor.shape == mine.tensor.shape)
            partner = next(shaped, None)
            if partner is not None:
                renamed = [one for one in renamed if one is not partner]
        yield mine, partner
    yield from ((None, one) for one in renamed)


def _with_tensors(value: Any, given: Mapping[TensorPath, tuple[Tensor, _Passed]]) -> Any:
    return map_tensors(
        value, lambda path, tensor: given[path][0] if path in given else tensor, each=True
    )


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; 0 for one of inference mode, which does not know."""
    return 0 if tensor.is_inference() else tensor._version


def _random_states(gpus: list[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


def _set_random_states(states: list[Tensor], gpus: list[int]) -> None:
    torch.set_rng_state(states[0])
    for gpu, state in zip(gpus, states[1:], strict=True):
        torch.cuda.set_rng_state(state, gpu)
