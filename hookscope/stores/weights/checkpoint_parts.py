"""Which part of a checkpoint, a mapping with tensors at any depth, is meant, and its tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeGuard, TypeVar

from hookscope.errors import RequestError
from hookscope.files.plain_pickle import OpaqueObject
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import near
from hookscope.files.words import join_first, plural
from hookscope.stores.weights.weight_set import LONGEST_NAME

WHOLE_FILE = "all"  # the part that has every tensor of the file
# Names of the part that has the weights of a model, among others of a training run.
MAIN_PARTS = (
    *("state_dict", "model_state_dict", "model", "module", "net", "network"),
    *("weights", "params", "model_state"),
)
# What a training run saves beside the weights of its model.
_TRAINING_STATE = re.compile(
    r"(.*_)?(optim\w*|opt|(lr_)?sched\w*|(grad_)?scaler|amp|rng\w*|random\w*|cuda_rng\w*|callbacks?"
    r"|loops?|hyper_?param\w*|args|config|cfg|meta\w*|metrics?|loss(es)?|best\w*|epoch|step|iter\w*"
    r"|history|sampler|(data)?loader|datamodule)(_?(states?|state_dict|dict|\d+))*",
    re.IGNORECASE,
)
_MODULE_STATE = ("_parameters", "_buffers", "_modules")
_DEEPEST = 64
# A checkpoint may contain the same value many times, so that these are no matter of its size.
_MOST_VALUES = 1_000_000
_MOST_ENTRIES = 12_000_000  # of containers, as often as they are read
_MOST_NAME_TEXT = 1 << 26  # characters of all names
_MOST_HIDDEN = 1000  # buffers of a module that are not saved
_MOST_METADATA = 200
_LONGEST_METADATA = 1 << 16  # characters of a value
_MOST_METADATA_TEXT = 1 << 20  # characters
_LISTED = 12


class DamagedCheckpoint(ValueError):
    """The values of a checkpoint contain themselves, or are too many."""


Leaf = TypeVar("Leaf")


@dataclass(frozen=True)
class CheckpointPart(Generic[Leaf]):
    """The tensors of a part of a checkpoint."""

    name: str
    tensors: dict[str, Leaf]
    metadata: dict[str, str]
    others: dict[str, int]
    unread: dict[str, str]


def choose_part(
    root: Any,
    is_tensor: Callable[[Any], TypeGuard[Leaf]],
    part: str,
    path: str,
    decides: Callable[[Any], TypeGuard[Leaf]] | None = None,
) -> CheckpointPart[Leaf]:
    """Return the tensors of a part, or of the part with the weights if ``part`` is empty.

    The tensors for which ``decides`` is true, if there are any, tell which part that is.
    """
    choice = _PartChoice(root, is_tensor, path)
    if part:
        return choice.named(part)
    deciding = _PartChoice(root, decides, path) if decides is not None else choice
    return choice.content(*(deciding if deciding.has_tensors() else choice).find())


class _PartChoice(Generic[Leaf]):
    """Steps from the root of a checkpoint to a part of it."""

    def __init__(self, root: Any, is_tensor: Callable[[Any], TypeGuard[Leaf]], path: str) -> None:
        self._root = root
        self._is_tensor = is_tensor
        self._path = path
        self._visits = 0
        self._entries = 0
        self._unread: dict[str, str] = {}

    def named(self, part: str) -> CheckpointPart[Leaf]:
        """The part of that name."""
        node = self._root if part == WHOLE_FILE else self._unwrapped(self._named(part))
        return self.content(node, (part,), {})

    def content(
        self, node: Any, keys: tuple[str, ...], others: dict[str, int]
    ) -> CheckpointPart[Leaf]:
        """The part that the keys lead to."""
        metadata = dict(_cut_off(self._plain_values(self._root, "")))
        self._unread.clear()
        tensors: dict[str, Leaf] = {}
        same: Counter[str] = Counter()
        characters = 0
        for names, value in self._walk(node, ()):
            name = joined = ".".join(names) or "tensor"
            while name in tensors:  # such as the key "w.2", and the key "2" in "w"
                same[joined] += 1
                name = f"{joined} {same[joined]}"
            tensors[name] = value
            characters += len(name)
            if characters > _MOST_NAME_TEXT:
                raise DamagedCheckpoint(
                    f"the names of its tensors have more than {_MOST_NAME_TEXT:,} characters"
                )
        return CheckpointPart(".".join(keys), tensors, metadata, others, dict(self._unread))

    def has_tensors(self) -> bool:
        """Whether there are any."""
        return next(self._walk(self._root, ()), None) is not None

    def find(self) -> tuple[Any, tuple[str, ...], dict[str, int]]:
        """The part with the weights: the only one, or that of the model in a training run."""
        node: Any = self._root
        keys: tuple[str, ...] = ()
        others: dict[str, int] = {}
        while not _is_module(node):
            if len(keys) > _DEEPEST:  # a value that contains itself
                raise DamagedCheckpoint("its values are nested too deep")
            direct, parts = self._children(node)
            main = [key for key in parts if key in MAIN_PARTS]
            if (direct and not main) or not parts or _is_sequence(node, parts):
                break
            if len(parts) > 1 or direct:
                if len(main) != 1 or not all(
                    key == main[0] or _TRAINING_STATE.fullmatch(key) for key in parts
                ):
                    raise self._ambiguous(keys, parts)
                others |= {".".join((*keys, k)): parts[k] for k in parts if k != main[0]}
            [key] = main if len(parts) > 1 else parts
            node, keys = dict(_items(node))[key], (*keys, key)
        return node, keys, others

    def _named(self, part: str) -> Any:
        """The value that a name leads to; keys may have dots too."""
        node, rest = self._root, part
        while rest:
            items = {} if self._is_tensor(node) else dict(_items(node))
            fitting = [key for key in items if rest == key or rest.startswith(f"{key}.")]
            if not fitting:
                raise self._unknown(part)
            key = max(fitting, key=len)
            node, rest = items[key], rest[len(key) + 1 :]
        if next(self._walk(node, ()), None) is None:
            raise self._unknown(part)
        return node

    def _unwrapped(self, node: Any) -> Any:
        """The state dict in a part that has nothing else."""
        while not (_is_module(node) or self._is_tensor(node)):
            direct, parts = self._children(node)
            if direct or len(parts) != 1 or next(iter(parts)) not in MAIN_PARTS:
                break
            node = dict(_items(node))[next(iter(parts))]
        return node

    def _children(self, node: Any) -> tuple[list[str], dict[str, int]]:
        """The keys of tensors directly in a node, and of what has tensors, with their number."""
        direct, parts = [], {}
        if self._is_tensor(node):
            return [""], {}
        for key, value in _items(node):
            if self._is_tensor(value):
                direct.append(key)
            elif count := sum(1 for _ in self._walk(value, ())):
                parts[key] = count
        return direct, parts

    def _walk(
        self, node: Any, above: tuple[str, ...], inside: tuple[int, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Leaf]]:
        """Yield each tensor in a node with the keys that lead to it."""
        self._visits += 1
        if self._visits > _MOST_VALUES or len(above) > _DEEPEST:
            raise DamagedCheckpoint("its values are nested too deep, or are too many")
        if self._is_tensor(node):
            yield above, node
        elif id(node) not in inside:
            if sum(map(len, above)) + len(above) > LONGEST_NAME:
                raise DamagedCheckpoint(f"it has a name of more than {LONGEST_NAME:,} characters")
            if isinstance(node, OpaqueObject) and not _is_module(node):
                self._unread[".".join(above)] = node.name
            containers = (dict, list, tuple, OpaqueObject)
            for key, value in _items(node):
                self._entries += 1
                if self._entries > _MOST_ENTRIES:
                    raise DamagedCheckpoint("it has the same values too often")
                if isinstance(value, containers) or self._is_tensor(value):
                    yield from self._walk(value, (*above, key), (*inside, id(node)))

    def _plain_values(self, node: Any, above: str) -> Iterator[tuple[str, str]]:
        """Numbers and texts in a checkpoint, of two levels, such as the epoch."""
        items = [] if self._is_tensor(node) or _is_module(node) else list(_items(node))
        if isinstance(node, list | tuple) or len(items) > _MOST_METADATA:
            return
        for key, value in items:
            if len(key) > LONGEST_NAME:
                continue
            if isinstance(value, str):
                yield f"{above}{key}", value
            elif isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64):
                yield f"{above}{key}", str(value)
            elif not above and isinstance(value, dict | OpaqueObject):
                yield from self._plain_values(value, f"{key}.")

    def _ambiguous(self, keys: tuple[str, ...], parts: Mapping[str, int]) -> RequestError:
        names = {".".join((*keys, key)): count for key, count in parts.items()}
        first = next(iter(names))
        return RequestError(
            f"{self._path} has {len(names)} parts with tensors: {listed_parts(names)}.",
            f"Name one of them, as in {_typed(self._path, first)}, or all:"
            f" {_typed(self._path, WHOLE_FILE)}",
        )

    def _unknown(self, part: str) -> RequestError:
        _, parts = self._children(self._root)
        close = near(part, parts)
        return RequestError(
            f"{self._path} has no part {part!r} with tensors.",
            f"Did you mean {_typed(self._path, close[0])}?"
            if close
            else f"Its parts are: {listed_parts(parts)}."
            if parts
            else "It has one part; give its name without #.",
        )


def _cut_off(metadata: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Metadata without texts that are long, or beyond a length in all."""
    left = _MOST_METADATA_TEXT
    for key, text in metadata:
        if len(text) <= _LONGEST_METADATA and (left := left - len(key) - len(text)) >= 0:
            yield key, text


def _items(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in a container: by key, by position, or by the names of a module's state."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list) or type(node) is tuple:
        yield from ((str(n), value) for n, value in enumerate(node))
    elif isinstance(node, OpaqueObject):
        if _is_module(node):
            hidden = _hidden_buffers(node)
            for kind in _MODULE_STATE:
                for key, value in node.state[kind].items():
                    if not (kind == "_buffers" and key in hidden):
                        yield key, value
            return
        if isinstance(node.state, dict):
            yield from node.state.items()
        yield from node.entries.items()
        yield from ((str(n), value) for n, value in enumerate(node.elements))


def _hidden_buffers(module: OpaqueObject) -> frozenset[str]:
    """The names of buffers of a pickled module that are not saved."""
    names = module.state.get("_non_persistent_buffers_set")
    if not isinstance(names, list | tuple) or len(names) > _MOST_HIDDEN:
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def _is_module(node: Any) -> bool:
    """Whether an object has the state of an ``nn.Module``, whatever its class."""
    return (
        isinstance(node, OpaqueObject)
        and isinstance(node.state, dict)
        and all(isinstance(node.state.get(name), dict) for name in _MODULE_STATE)
    )


def _is_sequence(node: Any, parts: Mapping[str, int]) -> bool:
    """Whether the parts of a node belong together: by number, or the state of an optimizer."""
    if isinstance(node, dict) and "state" in parts and "param_groups" in node:
        return True
    return all(key.isdecimal() for key in parts)


def _typed(path: str, part: str) -> str:
    """A part as it is typed in a shell, which takes ``#`` in a word as it is."""
    is_plain = all(quote_word(word) == word for word in (path, part))
    return f"{path}#{part}" if is_plain else quote_word(f"{path}#{part}")


def listed_parts(parts: Mapping[str, int]) -> str:
    """Return the names of parts, each with the number of its tensors."""
    return join_first((f"{name} ({plural(n, 'tensor')})" for name, n in parts.items()), _LISTED)
