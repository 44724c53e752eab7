"""What was seen of each tensor as it passed, and from that where NaN and infinities arose.

A model's tensors come by in order: what goes into a call, what functions return that it calls
itself, the same of the calls within it, what comes out. So the innermost call into which nothing
wrong went, and out of which something wrong came, can be told from the order alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hookscope.specs.record_kinds import INPUT, OP

# What puts -inf where attention is not to look.
MASKING = {"masked_fill", "where", "full", "full_like", "fill", "triu", "tril", "new_full"}
MASKING |= {"setitem", "index_fill", "masked_scatter", "zeros_like", "scatter"}


@dataclass(frozen=True)
class Ratio:
    """A share of ``of``: of units, of entries, of rows."""

    count: int
    of: int
    values: int  # how many entries each of them was judged by

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.count / self.of if self.of else 0.0


@dataclass(frozen=True)
class TensorObservation:
    """One tensor that passed.

    Attributes:
        kind: ``input``, ``op`` or ``output``.
        module: dotted name of the module whose call it belongs to.
        type: class name of the module.
        call: which call of the module it was.
        what: ``input.0``, ``relu:2``, ``output``.
        dtype: name of its dtype.
        numel: number of entries.
        nan: how many are NaN.
        inf: how many are infinite and positive.
        minus_inf: how many are infinite and negative.
        dead: its units that are zero throughout; None where it is no output of a ReLU.
        saturated: its entries at a bound; None where it has none.
    """

    kind: str
    module: str
    type: str
    call: int
    what: str
    dtype: str
    numel: int
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0
    dead: Ratio | None = None
    saturated: Ratio | None = None

    @property
    def function(self) -> str:
        """Name of the function that returned it, without its number; empty for no ``op``."""
        return self.what.partition(":")[0].rstrip("_") if self.kind == OP else ""

    @property
    def place(self) -> str:
        """What of the module's it is, in words: ``output``, ``relu:2``, ``output, call 2``."""
        return self.what if self.call == 1 else f"{self.what}, call {self.call}"


@dataclass(frozen=True)
class NonFiniteOrigin:
    """Where something that is no finite number arose.

    Attributes:
        module: the innermost call into which nothing of the kind went; empty for the model's input.
        function: the function that it called, where that is known.
        seen: the first tensor that it was seen in.
    """

    module: str
    function: str
    seen: TensorObservation


@dataclass
class _Call:
    """A call under way: what went in, and what has been seen within it."""

    module: str
    number: int
    clean: bool = True
    tainted: bool = False  # a birth within it is known
    masked: bool = False  # -inf of a mask is about
    suspect: TensorObservation | None = None  # the first function that returned something wrong
    blame: tuple[str, TensorObservation | None] | None = (
        None  # who handed it what is wrong, if not told yet
    )
    done: bool = False


@dataclass
class _Search:
    """Goes through the sights in order."""

    stack: list[_Call] = field(default_factory=list)
    found: list[NonFiniteOrigin] = field(default_factory=list)

    def take(self, sight: TensorObservation) -> None:
        """Look at the next tensor."""
        while self.stack and self.stack[-1].done and not self._is_of(sight, self.stack[-1]):
            self.stack.pop()
        if sight.kind == INPUT:
            self._enter(sight)
        elif sight.kind == OP:
            self._pass(sight)
        else:
            self._leave(sight)

    def _enter(self, sight: TensorObservation) -> None:
        if not self.stack or not self._is_of(sight, self.stack[-1]):
            self.stack.append(_Call(sight.module, sight.call))
        call = self.stack[-1]
        outer = self.stack[-2] if len(self.stack) > 1 else None
        if not (sight.nan or sight.inf or sight.minus_inf):
            return
        sound = outer is None or (outer.clean and not outer.tainted and outer.suspect is None)
        if sound and not (sight.nan or sight.inf):
            call.masked = True
        elif call.clean:
            call.clean = False
            if outer is None:
                call.blame = ("", sight)
            elif not outer.clean:
                call.blame = outer.blame
            elif outer.suspect is not None or not outer.tainted:
                call.blame = (outer.module, outer.suspect)

    def _pass(self, sight: TensorObservation) -> None:
        call = self.stack[-1] if self.stack else None
        if call is None or call.suspect is not None or not call.clean:
            return
        if sight.nan or sight.inf:
            call.suspect = sight
        elif sight.minus_inf:
            if sight.function in MASKING or call.masked:
                call.masked = True
            else:
                call.suspect = sight

    def _leave(self, sight: TensorObservation) -> None:
        if any(self._is_of(sight, call) for call in self.stack):
            while not self._is_of(sight, self.stack[-1]):
                self.stack.pop()
        else:  # called with no tensor
            self.stack.append(_Call(sight.module, sight.call))
        call = self.stack[-1]
        call.done = True
        outer = self.stack[-2] if len(self.stack) > 1 else None
        if not (sight.nan or sight.inf or (sight.minus_inf and not call.masked)):
            if sight.minus_inf and outer is not None:
                outer.masked = True
            return
        blame = (call.module, call.suspect) if call.clean else call.blame
        if not call.tainted and blame is not None:
            self._tell(*blame, sight)
        call.tainted = True
        if outer is not None:
            outer.tainted = True

    def _tell(
        self, module: str, suspect: TensorObservation | None, seen: TensorObservation
    ) -> None:
        function = suspect.function if suspect is not None else ""
        if all((module, function) != (one.module, one.function) for one in self.found):
            first = suspect if suspect is not None else seen
            self.found.append(NonFiniteOrigin(module, function, first))

    @staticmethod
    def _is_of(sight: TensorObservation, call: _Call) -> bool:
        return (sight.module, sight.call) == (call.module, call.number)


def births(sights: Iterable[TensorObservation]) -> list[NonFiniteOrigin]:
    """Return where NaN and infinities arose, in order of their appearance.

    -inf that a function puts in for a mask, or that is handed in as one, is none as long as what
    comes out is finite; nor is what a call of the model keeps to itself.
    """
    search = _Search()
    for sight in sights:
        search.take(sight)
    return search.found
