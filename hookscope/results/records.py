"""The records of a recording in execution order, and where they came from, without the tensors.

Each tensor has one key: ``<module>[:call]/<what>``, such as ``layer3.0.relu:2/output``. The key of
a module's first call has no number, so that it does not change if there is a second call.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from typing import Any

from hookscope.errors import MissingKeyError, ResultsFileError, cause
from hookscope.escapes import encodable
from hookscope.files import strict_json
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_first
from hookscope.results.metadata import find_damage, image_size
from hookscope.results.result import Result
from hookscope.results.stats import Stats
from hookscope.specs.patterns import root_named
from hookscope.specs.tensor_key import OUTPUT

MAX_KEYS = 20  # keys that an error lists


def key_of(module: str, call: int, what: str) -> str:
    """Return the key of the first tensor of this name.

    >>> key_of("layer3.0.relu", 1, "output"), key_of("layer3.0.relu", 2, "output")
    ('layer3.0.relu/output', 'layer3.0.relu:2/output')
    """
    prefix = module if call == 1 else f"{module}:{call}"
    return encodable(f"{prefix}/{what}")


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name, marked ``~2`` or with the next number if it is taken."""
    free, again = name, 2
    while free in taken:
        free, again = f"{name}~{again}", again + 1
    return free


@dataclass(frozen=True)
class Record:
    """One recorded tensor.

    Attributes:
        key: its name in the capture and in the file, ``<module>[:call]/<what>``.
        module: dotted name of the module, ``.`` for the model itself.
        type: class name of the module.
        call: number of the module's call, from 1; for a parameter's gradient, of the backward pass.
        what: the part of the key after the slash: ``output``, ``output.1.0``, ``input.mask``,
            ``output.grad``, ``weight.grad``.
        kind: ``output``, ``input``, ``output.grad``, ``input.grad``, ``param.grad``, ``op``,
            ``op.grad``, ``attention``, ``cam``, ``attribution`` or ``emitted``; followed by
            ``.unedited`` for a tensor as it was before an edit.
        shape: of the tensor.
        dtype: name of the tensor's dtype as recorded, ``float32``.
        device: where it was computed.
        aliases: other names of the module, or of the parameter.
        weight_norm: for a parameter's gradient, the Euclidean norm of the parameter.
        summary: computes the statistics.
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
        """Statistics of the tensor, computed when they are first used."""
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

    def type_error(self) -> str:
        """Return which field has a wrong type, as in a damaged file; empty if all are valid."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "summary"}
        error = strict_json.fields_type_error
        wrong = error(plain, Record, self.key) or error(vars(self.stats), Stats, self.key)
        if not wrong and not self.stats.are_possible():
            wrong = f"the statistics of {self.key} are impossible"
        return wrong


@dataclass(frozen=True)
class Absent:
    """A requested tensor that does not exist, and the reason. It is never replaced by zeros."""

    module: str
    type: str
    call: int
    what: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ExecutedModule:
    """A matched module that ran, and its number of calls."""

    module: str
    type: str
    calls: int


@dataclass(frozen=True)
class UnexecutedModule:
    """A matched module that did not run, and the likely reason."""

    module: str
    type: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Which matched modules were executed, in order of their first call, and which were not.

    Attributes:
        executed: the matched modules that ran.
        not_executed: the matched modules that did not.
        stopped_after: the module after whose call the run was ended; empty if it was not.
        not_run: modules that were not run because the run was ended, in the order in which they
            would run. A module inside another one of them is left out. Empty if they are not known.
        calls_complete: whether no call of a matched module is missing because the run was ended.
    """

    executed: tuple[ExecutedModule, ...] = ()
    not_executed: tuple[UnexecutedModule, ...] = ()
    stopped_after: str = ""
    not_run: tuple[str, ...] = ()
    calls_complete: bool = True

    @classmethod
    def joined(cls, parts: Iterable[Coverage]) -> Coverage:
        """Return the modules of several models as one."""
        every = list(parts)
        return cls(
            tuple(module for part in every for module in part.executed),
            tuple(module for part in every for module in part.not_executed),
        )

    @property
    def matched(self) -> int:
        """The number of modules that the patterns matched."""
        return len(self.executed) + len(self.not_executed)

    def to_json(self) -> dict[str, Any]:
        """Return the modules as plain dicts, as the metadata of a file has them."""
        stopped = {
            "stopped_after": self.stopped_after,
            "not_run": list(self.not_run),
            "calls_complete": self.calls_complete,
        }
        return {
            "executed": [asdict(module) for module in self.executed],
            "not_executed": [asdict(module) for module in self.not_executed],
            **(stopped if self.stopped_after else {}),
        }

    @classmethod
    def pop_from(cls, info: dict[str, Any]) -> Coverage:
        """Remove the entries that ``to_json`` returned from ``info``; return what they describe."""
        stopped = info.pop("stopped_after", None) or ""  # the features of a whole run have None
        # Before there was the entry, capture ended a run after the first call of each module.
        ended_at_last = not stopped or info.get("command") == "extract"
        not_run = info.pop("not_run", [])
        return cls(
            tuple(ExecutedModule(**entry) for entry in info.pop("executed")),
            tuple(UnexecutedModule(**entry) for entry in info.pop("not_executed")),
            stopped,
            tuple(not_run) if isinstance(not_run, list) else not_run,
            info.pop("calls_complete", ended_at_last),
        )

    def type_error(self) -> str:
        """Return which entry has a wrong type, as in a damaged file; empty if all are valid."""
        entries: tuple[ExecutedModule | UnexecutedModule, ...]
        entries = (*self.executed, *self.not_executed)
        for entry in entries:
            if wrong := strict_json.fields_type_error(vars(entry), type(entry), entry.module):
                return wrong
        stop = ("stopped_after", "not_run", "calls_complete")
        own = {name: getattr(self, name) for name in stop}
        return strict_json.fields_type_error(own, Coverage, "coverage")


class Recording(Result):
    """The records and metadata of a recording, without the tensors.

    Attributes:
        records: one ``Record`` for each key, in execution order.
        absent: requested tensors that do not exist.
        coverage: which modules ran.
        metadata: where the tensors came from: model, weights, inputs, seed, versions.
    """

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self.absent: tuple[Absent, ...] = ()
        self.coverage = Coverage()
        self.metadata: dict[str, Any] = {}

    @property
    def view(self) -> str:  # type: ignore[override]
        """The view of the command that made the recording, which its metadata names."""
        views = {"grads": "grads", "step": "step", "statistics": "features.STATISTICS"}
        return views.get(str(self.metadata.get("command")), "capture")

    @property
    def records(self) -> tuple[Record, ...]:
        """The records in execution order."""
        return tuple(self._records.values())

    @property
    def has_coverage(self) -> bool:
        """Whether it says which modules ran; a stopped training's has one call alone."""
        return bool(self.coverage.matched or not self._records)

    @property
    def image(self) -> tuple[int, int] | None:
        """Height and width of the input images or videos; None without images."""
        return image_size(self.metadata)

    def to_json(self) -> dict[str, Any]:
        """Return the metadata's keys, then records, absent tensors and coverage, without values."""
        return {
            **self.metadata,
            "top": self.metadata.get("top", []),
            "records": [record.to_json() for record in self.records],
            "absent": [asdict(absent) for absent in self.absent],
            "coverage": {"matched": self.coverage.matched, **self.coverage.to_json()},
        }

    def to_info(self) -> dict[str, Any]:
        """Return records and metadata as the file of a recording has them."""
        return {
            **self.metadata,
            "records": [r.to_json() for r in self.records],
            "absent": [vars(a) for a in self.absent],
            **self.coverage.to_json(),
        }

    def load_info(
        self, info: dict[str, Any], shapes: Mapping[str, Sequence[int]], path: object
    ) -> None:
        """Load what ``to_info`` returned.

        Args:
            info: the metadata of a file.
            shapes: the shapes of the tensors in the file, by key.
            path: the file, for messages.

        Raises:
            ResultsFileError: the metadata is damaged.
        """
        metadata = dict(info)
        try:
            self._records = {r.key: r for r in map(Record.from_json, metadata.pop("records"))}
            self.absent = tuple(Absent(**entry) for entry in metadata.pop("absent"))
            self.coverage = Coverage.pop_from(metadata)
            wrong = self._type_error(shapes) or find_damage(metadata, self._records)
        except KeyError as error:
            wrong = f"{error.args[0]!r} is missing"
        except (TypeError, ValueError, AttributeError) as error:
            wrong = cause(error)
        if wrong:
            raise ResultsFileError(
                f"Cannot read {path}: its metadata is damaged ({' '.join(wrong.split())}).",
                "Record the file again.",
            )
        self.metadata = metadata

    def _type_error(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """What is wrong with the records: a type, or the shape of a tensor; empty if nothing."""
        for entry in self.absent:
            if wrong := strict_json.fields_type_error(vars(entry), Absent, entry.module):
                return wrong
        if wrong := self.coverage.type_error():
            return wrong
        for key, record in self._records.items():
            if wrong := record.type_error():
                return wrong
            if record.shape != tuple(shapes[key]):
                return f"{key} has another shape"
        return ""


def find_key(name: str, records: Mapping[str, Record]) -> str:
    """Return the key that a name stands for.

    A key stands for itself. A layer (``relu``), or one call of it (``relu:2``), stands for its
    output, and for its only tensor if no output was recorded. The model itself is ``.`` or
    ``(model)``.
    """
    if name in records:
        return name
    root = root_named(str(name))
    if root in records:
        return root
    of_layer = [
        record for record in records.values() if root in (record.module, _call_of(record.key))
    ]
    matches = [record.key for record in of_layer if record.kind == OUTPUT]
    matches = matches or [record.key for record in of_layer]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise MissingKeyError(
            f"{name!r} has {len(matches)} tensors.",
            f"Use one of the keys {join_first(map(repr, matches), MAX_KEYS)}.",
        )
    names = [*records, *map(_call_of, records)]
    near = did_you_mean(str(name), names)
    keys = join_first(map(repr, records), MAX_KEYS)
    listed = f"The keys are {keys}." if records else "Nothing was recorded."
    raise MissingKeyError(f"There is no tensor {name!r}.", f"{near} {listed}")


def _call_of(key: str) -> str:
    """The layer of a key, with the number of its call from the second call on."""
    return key.rpartition("/")[0]
