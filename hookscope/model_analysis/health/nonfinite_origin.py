"""The calls in which NaN and infinities arose, found from the tensors of a run in order.

The tensors of a call come in this order: its inputs, then as they are computed the results of
functions that it calls and the tensors of the calls within it, then its outputs. The order tells
the innermost call whose inputs are finite and whose outputs are not. A function is judged by its
own arguments, which may be outputs of calls within the same call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hookscope.model_analysis.health.run_observation import MINUS_INF, TensorObservation
from hookscope.specs.tensor_key import INPUT, OP

# Functions that write -inf where attention must not look.
MASKING = {"masked_fill", "where", "full", "full_like", "fill", "triu", "tril", "new_full"}
MASKING |= {"setitem", "index_fill", "masked_scatter", "zeros_like", "scatter"}


@dataclass(frozen=True)
class NonFiniteOrigin:
    """A place where a NaN or an infinity arose."""

    module: str
    function: str
    first: TensorObservation


@dataclass
class _Call:
    """A call in progress."""

    module: str
    number: int
    input_finite: bool = True
    origin_known: bool = False
    mask_seen: bool = False
    suspect: TensorObservation | None = None
    guarded: bool = False
    source: tuple[str, TensorObservation | None] | None = None
    done: bool = False

    @property
    def blamed(self) -> TensorObservation | None:
        """The suspect, unless it is guarded and what is not finite came from elsewhere."""
        elsewhere = self.origin_known or not self.input_finite
        return None if self.guarded and elsewhere else self.suspect


@dataclass
class _OriginSearch:
    """A search through the tensors of a run, in order."""

    stack: list[_Call] = field(default_factory=list)
    origins: list[NonFiniteOrigin] = field(default_factory=list)
    seen: bool = False  # whether a tensor that is not finite was among those so far

    def add(self, observation: TensorObservation) -> None:
        """Process the next tensor."""
        while self.stack and self.stack[-1].done and not self._is_of(observation, self.stack[-1]):
            self.stack.pop()
        if observation.kind == INPUT:
            self._enter(observation)
        elif observation.kind == OP:
            self._pass(observation)
        else:
            self._leave(observation)
        self.seen = self.seen or bool(observation.nan or observation.inf or self.origins)

    def _enter(self, observation: TensorObservation) -> None:
        if not self.stack or not self._is_of(observation, self.stack[-1]):
            self.stack.append(_Call(observation.module, observation.call))
        call = self.stack[-1]
        outer = self.stack[-2] if len(self.stack) > 1 else None
        if not (observation.nan or observation.inf or observation.minus_inf):
            return
        outer_finite = outer is None or (
            outer.input_finite
            and not outer.origin_known
            and (outer.suspect is None or outer.guarded)
        )
        if outer_finite and not (observation.nan or observation.inf):
            call.mask_seen = True
        elif call.input_finite:
            call.input_finite = False
            if outer is None:
                call.source = ("", observation)
            elif not outer.input_finite:
                call.source = outer.source
            elif outer.blamed is not None or not outer.origin_known:
                call.source = (outer.module, outer.blamed)

    def _pass(self, observation: TensorObservation) -> None:
        call = self.stack[-1] if self.stack else None
        if call is None:
            return
        if observation.arguments == {MINUS_INF} and not self.seen:
            call.mask_seen = True  # a buffer with a mask
        masks = {MINUS_INF} if call.mask_seen else set()
        if self.seen and observation.arguments - masks:  # it made nothing, but was passed it
            call.guarded = call.guarded or _is_finite_float(observation)
            return
        if call.suspect is not None and not call.guarded:
            return
        masking = observation.function in MASKING or call.mask_seen
        if observation.nan or observation.inf or (observation.minus_inf and not masking):
            call.suspect, call.guarded, self.seen = observation, False, True
        elif observation.minus_inf:
            call.mask_seen = True

    def _leave(self, observation: TensorObservation) -> None:
        if any(self._is_of(observation, call) for call in self.stack):
            while not self._is_of(observation, self.stack[-1]):
                self.stack.pop()
        else:  # called with no tensor
            self.stack.append(_Call(observation.module, observation.call))
        call = self.stack[-1]
        call.done = True
        outer = self.stack[-2] if len(self.stack) > 1 else None
        if not (
            observation.nan or observation.inf or (observation.minus_inf and not call.mask_seen)
        ):
            if observation.minus_inf and outer is not None:
                outer.mask_seen = True
            return
        if call.source is not None and not call.origin_known:
            self._add_origin(*call.source, observation)
        if call.blamed is not None or (call.input_finite and not call.origin_known):
            self._add_origin(call.module, call.blamed, observation)
        call.origin_known = True
        if outer is not None:
            outer.origin_known = True

    def _add_origin(
        self, module: str, suspect: TensorObservation | None, output: TensorObservation
    ) -> None:
        function = suspect.function if suspect is not None else ""
        if all((module, function) != (origin.module, origin.function) for origin in self.origins):
            first = suspect if suspect is not None else output
            self.origins.append(NonFiniteOrigin(module, function, first))

    @staticmethod
    def _is_of(observation: TensorObservation, call: _Call) -> bool:
        return (observation.module, observation.call) == (call.module, call.number)


def _is_finite_float(observation: TensorObservation) -> bool:
    """Whether it has numbers, all finite. The result of ``isnan`` has none."""
    nonfinite = observation.nan or observation.inf or observation.minus_inf
    return "float" in observation.dtype and not nonfinite


def find_nonfinite_origins(observations: Iterable[TensorObservation]) -> list[NonFiniteOrigin]:
    """Return where NaN and infinities arose, in order of their appearance.

    -inf of a mask does not count if the output is finite, nor a tensor that is not returned.
    """
    search = _OriginSearch()
    for observation in observations:
        search.add(observation)
    return search.origins
