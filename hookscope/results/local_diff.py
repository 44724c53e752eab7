"""The result of comparing two models module by module, each with the same inputs, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from hookscope.results.diff_result import Diff
from hookscope.results.records import key_of
from hookscope.results.result import Result

# The verdict on the error that a module makes by itself.
ROUNDING, BETWEEN, FAULT = "rounding", "between", "fault"
# In units of the floor. Another order of the same operations stays below the first.
ROUNDING_LIMIT, FAULT_LIMIT = 10.0, 100.0


@dataclass(frozen=True)
class ModuleError:
    """The error of one call of a module of B.

    Errors are relative: ``|a - b| / |a|`` with Euclidean norms.

    Attributes:
        module: its name in A.
        other: the name of its counterpart in B.
        call: the number of the call in A, from 1.
        type: class name of the module in A.
        accumulated: the error of its outputs if both models run from the input; None if their
            shapes differ.
        differs: whether that is beyond the tolerance.
        own: the largest error of what it computes itself, on A's inputs and with A's outputs of the
            modules within it; None if it was not measured.
        tensor: the key of the tensor with that error: an output, or what it passes to a module
            within it. Of several, the one with the largest error in units.
        unit: the error of A's module that its precision explains, the floor; without one, the
            relative tolerance.
        a_is_zero: whether that tensor is exactly zero in A, and the own error therefore infinite.
        unmatched: keys of tensors that only one of the two gets or returns.
        reason: why there is no own error.
        note: why the accumulated outputs differ, as far as it is known.
    """

    module: str
    other: str
    call: int
    type: str
    accumulated: float | None
    differs: bool
    own: float | None = None
    tensor: str = ""
    unit: float = 0.0
    a_is_zero: bool = False
    unmatched: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""

    @property
    def key(self) -> str:
        """Its name, with the number of the call if that is not the first."""
        return key_of(self.module, self.call, "").removesuffix("/")

    @property
    def units(self) -> float | None:
        """The own error over the unit; None if it was not measured."""
        if self.own is None or self.own == 0.0:
            return self.own
        return self.own / self.unit if self.unit else inf

    def to_json(self) -> dict[str, Any]:
        """Return the error as a plain dict."""
        return {**asdict(self), "units": self.units}


@dataclass(frozen=True)
class LocalDiff(Result):
    """Where the differences of two models arise.

    Attributes:
        diff: the comparison of the two models from the input to the output.
        errors: of the calls of modules, in A's order of execution.
        floor: the dtype in which A ran for the units; empty if the unit is the tolerance.
        all_count: whether an output beyond the tolerance is a difference although no module has a
            fault, as without a floor. So it is where the floor was not asked for.

    Example:
        >>> import hookscope
        >>> found = hookscope.diff(
        ...     "resnet18", "resnet18", dtype=["float32", "bfloat16"], shape=(1, 3, 64, 64),
        ...     floor="float64",
        ... )
        >>> found.same, found.faults
        (True, ())
    """

    view = "local_diff"

    diff: Diff
    errors: tuple[ModuleError, ...]
    floor: str = ""
    all_count: bool = False

    def __repr__(self) -> str:
        text = f"<LocalDiff of {len(self.errors)} calls: {len(self.faults)} differ by themselves"
        return f"{text}, the most is {self.faults[0].key}>" if self.faults else f"{text}>"

    def verdict(self, error: ModuleError) -> str:
        """Return ``rounding``, ``between`` or ``fault``; without a floor there is no ``between``.

        Empty if the own error was not measured.
        """
        if error.units is None:
            return ""
        if not self.floor:
            return FAULT if error.units > 1 else ROUNDING
        if error.units > FAULT_LIMIT:
            return FAULT
        return BETWEEN if error.units > ROUNDING_LIMIT else ROUNDING

    @property
    def faults(self) -> tuple[ModuleError, ...]:
        """The calls with a fault, the one with the most units first."""
        found = [error for error in self.errors if self.verdict(error) == FAULT]
        return tuple(sorted(found, key=lambda error: -(error.units or 0.0)))

    @property
    def echoes(self) -> tuple[ModuleError, ...]:
        """The calls after the first fault, without one, whose outputs differ beyond the tolerance.

        Those around the fault end after it.
        """
        verdicts = [self.verdict(error) for error in self.errors]
        first = verdicts.index(FAULT) if FAULT in verdicts else len(verdicts)
        after = zip(self.errors[first:], verdicts[first:], strict=True)
        return tuple(error for error, verdict in after if error.differs and verdict == ROUNDING)

    @property
    def same(self) -> bool:
        """Whether no module has a fault, nor an output a difference, unless ``floor`` was given.

        With ``strict``, tensors without a match are a difference too.
        """
        return not self.faults and (
            self.diff.matches_all if self.floor and not self.all_count else self.diff.same
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **self.diff.to_json(),
            "same": self.same,
            "floor": self.floor,
            "faults": [error.key for error in self.faults],
            "errors": [
                {**error.to_json(), "verdict": self.verdict(error)} for error in self.errors
            ],
        }
