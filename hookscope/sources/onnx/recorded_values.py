"""The values of one run that modules with hooks need, computed in windows that fit into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from hookscope.errors import ModelError
from hookscope.sources.onnx.session import GraphSession
from hookscope.sources.onnx.value_shapes import Shape, ValueShapes, size_in_bytes

WINDOW = 1 << 30  # bytes of values of one run of the graph
_ENTRY = 8  # bytes of an entry of unknown type, at most


class RecordedValues:
    """The values of one run by name, which are computed when one is first asked for.

    Every window is a run of the part of the graph that computes it. A value is let go once it was
    returned as often as ``order`` contains it.
    """

    def __init__(
        self,
        session: GraphSession,
        shapes: ValueShapes,
        feeds: Mapping[str, Tensor],
        order: Sequence[str],
        depths: Mapping[str, int] | None = None,
    ) -> None:
        self._session, self._feeds = session, feeds
        self._uses = Counter(order)
        self._values: dict[str, Any] = dict(feeds)
        groups: dict[int, list[str]] = {}
        for name in self._uses:
            groups.setdefault((depths or {}).get(name, 0), []).append(name)
        self._windows = [w for names in groups.values() for w in self._divide(shapes, names)]
        if self._windows:  # now, so that the time of the run is the model's and not a part's
            self._values |= session.run(feeds, self._windows.pop(0))

    def take(self, name: str) -> Any:
        """Return a value."""
        if name not in self._values:
            window = next((names for names in self._windows if name in names), None)
            if window is None:
                raise ModelError(f"The value {name!r} of the graph cannot be computed.", "")
            self._windows.remove(window)
            self._values |= self._session.run(self._feeds, window)
        value = self._values[name]
        self._uses[name] -= 1
        if self._uses[name] <= 0 and name not in self._feeds:
            del self._values[name]
        return value

    def _divide(self, shapes: ValueShapes, names: Sequence[str]) -> list[list[str]]:
        """The names in groups whose values have at most ``WINDOW`` bytes, or one name."""
        names = [name for name in names if name not in self._feeds]
        inputs: dict[str, Shape] = {name: tuple(t.shape) for name, t in self._feeds.items()}
        known = {n: size_in_bytes(*entry) for n, entry in shapes.of(names, inputs).items()}
        if unknown := [name for name in names if name not in known]:
            with suppress(ModelError):  # a list of tensors has no size; the run tells all else
                counts = self._session.measure(self._feeds, unknown)
                known |= {name: count * _ENTRY for name, count in counts.items()}
        groups: list[list[str]] = []
        size = 0
        for name in names:
            size += known.get(name, 0)
            if not groups or size > WINDOW:
                groups.append([])
                size = known.get(name, 0)
            groups[-1].append(name)
        return groups
