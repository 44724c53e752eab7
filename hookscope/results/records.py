"""What is told of a recording: records in execution order, and where they came from.

Nothing here holds a tensor, so nothing here needs torch.

One tensor, one key: ``<module>[:call]/<what>``, such as ``layer3.0.relu:2/output``. The first call
of a module bears no number, so a key stays the same when a later call appears.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

from hookscope.errors import ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.files.escapes import encodable
from hookscope.files.strict_json import fields_type_error
from hookscope.results.metadata import find_damage
from hookscope.results.stats import Stats


def key_of(module: str, call: int, what: str) -> str:
    """Return the key of a tensor that has none before it of the same name.

    >>> key_of("layer3.0.relu", 1, "output"), key_of("layer3.0.relu", 2, "output")
    ('layer3.0.relu/output', 'layer3.0.relu:2/output')
    """
    prefix = module if call == 1 else f"{module}:{call}"
    return encodable(f"{prefix}/{what}")


@dataclass(frozen=True)
class Record:
    """One recorded tensor.

    Attributes:
        key: its name in the capture and in the file, ``<module>[:call]/<what>``.
        module: dotted name of the module, ``.`` for the model itself.
        type: class name of the module.
        call: which call of the module it was, from 1. For a parameter's gradient: which backward.
        what: the part of the key behind the slash: ``output``, ``output.1.0``, ``input.mask``,
            ``output.grad``, ``weight.grad``.
        kind: ``output``, ``input``, ``output.grad``, ``input.grad``, ``param.grad``, ``op``,
            ``op.grad``, ``attention``, ``cam``, ``attribution`` or ``emitted``; with ``.unedited``
            behind it for a tensor as it was before an edit.
        shape: lengths of the dimensions.
        dtype: name of the tensor's dtype as recorded, ``float32``.
        device: where it was computed.
        aliases: further names of the module, or of the parameter.
        weight_norm: for a parameter's gradient, the Euclidean norm of the parameter.
    """

    key: str
    module: str
    type: str
    call: int
    what: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    aliases: tuple[str, ...] = ()
    weight_norm: float | None = None
    summary: partial[Stats] = field(repr=False, compare=False, default=partial(Stats))

    @cached_property
    def stats(self) -> Stats:
        """Statistics of the tensor as it is when they are first asked for."""
        return self.summary()

    @property
    def ratio(self) -> float | None:
        """Norm of a parameter's gradient over the norm of the parameter itself."""
        norm = self.stats.norm
        return norm / self.weight_norm if self.weight_norm and norm is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the record as a plain dict, statistics included."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "summary"}
        return {**plain, "stats": self.stats.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Return the record that ``to_json`` described."""
        stats: dict[str, Any] = {k: strict_json.parse_number(v) for k, v in data["stats"].items()}
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known.update(shape=tuple(data["shape"]), aliases=tuple(data["aliases"]))
        known.update(weight_norm=strict_json.parse_number(data["weight_norm"]))
        return cls(**known, summary=partial(Stats, **stats))

    def misfit(self) -> str:
        """Return which field is not of its type, as one of a damaged file; empty if all are."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "summary"}
        stats = self.stats
        wrong = fields_type_error(plain, Record, self.key) or fields_type_error(
            vars(stats), Stats, self.key
        )
        if not wrong and not stats.are_possible():
            wrong = f"the statistics of {self.key} are no tensor's"
        return wrong


@dataclass(frozen=True)
class Absent:
    """Something asked for that does not exist, and why in plain words: never a made-up zero."""

    module: str
    type: str
    call: int
    what: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ExecutedModule:
    """A matched module that ran, and how often."""

    module: str
    type: str
    calls: int


@dataclass(frozen=True)
class UnexecutedModule:
    """A matched module that never ran, and the likely cause."""

    module: str
    type: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Which of the matched modules ran (in order of their first call) and which did not."""

    executed: tuple[ExecutedModule, ...] = ()
    not_executed: tuple[UnexecutedModule, ...] = ()

    @property
    def matched(self) -> int:
        """How many modules the patterns chose."""
        return len(self.executed) + len(self.not_executed)


class Recording:
    """Records and what goes with them, without the tensors.

    Attributes:
        records: one ``Record`` for each key, in execution order.
        absent: what was asked for and does not exist.
        coverage: which modules ran.
        metadata: where all this came from: model, weights, inputs, seed, versions.
    """

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self.absent: tuple[Absent, ...] = ()
        self.coverage = Coverage()
        self.metadata: dict[str, Any] = {}

    @property
    def records(self) -> tuple[Record, ...]:
        """The records in execution order."""
        return tuple(self._records.values())

    @property
    def image(self) -> tuple[int, int] | None:
        """Height and width of the images (or videos) that went in; None where none did."""
        for argument in self.metadata.get("arguments") or ():
            shape: list[int] = argument.get("shape") or []
            # Anything else that has four dimensions is unlikely to have so few channels.
            if len(shape) in (4, 5) and 1 <= shape[1] <= 4:
                return shape[-2], shape[-1]
        return None

    def to_info(self) -> dict[str, Any]:
        """Return all of it as a plain dict, the metadata's keys beside the others."""
        return {
            **self.metadata,
            "records": [r.to_json() for r in self.records],
            "absent": [vars(a) for a in self.absent],
            "fired": [vars(f) for f in self.coverage.executed],
            "silent": [vars(s) for s in self.coverage.not_executed],
        }

    def take_info(
        self, info: dict[str, Any], shapes: Mapping[str, Sequence[int]], path: object
    ) -> None:
        """Become what ``to_info`` described.

        Args:
            info: what the file ``path`` tells.
            shapes: those of the tensors that are in it, by key.
            path: for the error's sentence.

        Raises:
            ResultsFileError: the description is damaged, or tells of a tensor that is not there.
        """
        told = dict(info)
        try:
            self._records = {r.key: r for r in map(Record.from_json, told.pop("records"))}
            self.absent = tuple(Absent(**data) for data in told.pop("absent"))
            executed = tuple(ExecutedModule(**data) for data in told.pop("fired"))
            self.coverage = Coverage(
                executed, tuple(UnexecutedModule(**d) for d in told.pop("silent"))
            )
            wrong = self._misfit(shapes) or find_damage(told, self._records)
        except KeyError as error:
            wrong = f"there is no {error.args[0]!r}"
        except (TypeError, ValueError, AttributeError) as error:
            wrong = cause(error)
        if wrong:
            raise ResultsFileError(
                f"Cannot read {path}: its metadata is damaged ({' '.join(wrong.split())}).",
                "Record the file again.",
            )
        self.metadata = told

    def _misfit(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """What is wrong with the records: a type, or that a tensor is another than described."""
        every: tuple[Absent | ExecutedModule | UnexecutedModule, ...]
        every = (*self.absent, *self.coverage.executed, *self.coverage.not_executed)
        for entry in every:
            if wrong := fields_type_error(vars(entry), type(entry), entry.module):
                return wrong
        for key, record in self._records.items():
            if wrong := record.misfit():
                return wrong
            if record.shape != tuple(shapes[key]):
                return f"{key} is of another shape"
        return ""
