"""Which tensor of a recording a name stands for: a key, or a layer with one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hookscope.errors import MissingKeyError
from hookscope.files.suggestions import did_you_mean
from hookscope.results.records import Record
from hookscope.specs.patterns import root_named
from hookscope.specs.record_kinds import OUTPUT

MAX_KEYS = 20  # keys that an error lists


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
            f"{name!r} has {len(matches)} tensors.", f"Use one of the keys {_join(matches)}."
        )
    names = [*records, *map(_call_of, records)]
    near = did_you_mean(str(name), names)
    listed = f"The keys are {_join(records)}." if records else "Nothing was recorded."
    raise MissingKeyError(f"There is no tensor {name!r}.", f"{near} {listed}")


def _call_of(key: str) -> str:
    """The layer of a key, with the number of its call from the second call on."""
    return key.rpartition("/")[0]


def _join(keys: Iterable[str]) -> str:
    keys = list(keys)
    more = f" and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else ""
    return ", ".join(map(repr, keys[:MAX_KEYS])) + more
