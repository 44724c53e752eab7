"""A pickle read as plain data: containers, numbers and texts, with records for everything else.

No global of a pickle is imported and nothing of it is called. An object that a pickle would build
becomes an ``OpaqueObject`` that has the name of its class, its arguments and its state.

The instructions are interpreted here instead of by ``pickle.Unpickler``, whose memo grows to any
index that a file names, and which calls what it finds. Keys of mappings become texts, so that no
key is hashed that a file could choose for its hash or its depth.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from hookscope.files.pickle_scan import (
    DAMAGED_ZIP,
    MOST_INSTRUCTIONS,
    BoundedFile,
    DamagedPickle,
    GlobalNames,
    LongPickle,
)

_CUT_KEY = 60  # characters of a key that is not a text, if another has the same
_MOST_SKIPPED = 256  # numbers of values that are not used
_LARGEST_KEY = 64  # bits of an integer
# What instructions raise that do not belong together.
_UNREADABLE = (
    *(LookupError, TypeError, AttributeError, EOFError, MemoryError, RecursionError),
    *DAMAGED_ZIP,
)


class GlobalName(NamedTuple):
    """A class or function by its dotted name, which is not imported."""

    name: str


class OpaqueObject:
    """An object that a pickle would build by running code, which was not run."""

    __slots__ = ("arguments", "elements", "entries", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None
        self.entries: dict[str, Any] = {}
        self.elements: list[Any] = []

    def __repr__(self) -> str:
        return f"<OpaqueObject {self.name}>"


class PlainUnpickler:
    """Reads one pickle after another from a file.

    A subclass knows more globals by overriding ``build``, and persistent ids by ``resolve``.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = BoundedFile(file)
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._count = 0
        # The keys that were no texts of each mapping, which is kept so that no other has its id.
        self._no_texts: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self.names = GlobalNames()
        self.called: dict[str, None] = {}

    def load(self) -> Any:
        """Return the content of the next pickle."""
        self._stack, self._marks, self._memo = [], [], {}
        try:
            instructions = pickletools.genops(self._file)  # type: ignore[arg-type]
            for opcode, argument, _ in instructions:
                self._count += 1
                if self._count > MOST_INSTRUCTIONS:
                    raise LongPickle(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
                if opcode.name == "STOP":
                    return self._stack.pop()
                _RUN[opcode.name](self, argument)
        except DamagedPickle:
            raise
        except _UNREADABLE as exc:
            raise DamagedPickle(_reason(exc)) from exc
        raise DamagedPickle("it ends early")

    def build(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return what a call of the global ``name`` stands for."""
        return OpaqueObject(name, arguments)

    def resolve(self, pid: Any) -> Any:
        """Return what a persistent id stands for."""
        return OpaqueObject("?")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop_marked(self) -> list[Any]:
        """Take what was pushed since the last mark."""
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _pop(self, argument: Any) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _put(self, index: int | None) -> None:
        if index is not None and index > self._count + _MOST_SKIPPED:  # C++ readers allocate all
            raise DamagedPickle("it numbers its values far too high")
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _tuple(self, count: int | None) -> None:
        if count is None:
            self._push(tuple(self._pop_marked()))
            return
        items = tuple(self._stack[len(self._stack) - count :]) if count else ()
        if len(items) < count:
            raise LookupError("the stack is empty")
        del self._stack[len(self._stack) - count :]
        self._push(items)

    def _dict(self, argument: Any) -> None:
        items = self._pop_marked()
        self._push({})
        self._set_all(items)

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        (target.elements if isinstance(target, OpaqueObject) else target).extend(items)

    def _set_item(self, argument: Any) -> None:
        value = self._stack.pop()
        self._set_all([self._stack.pop(), value])

    def _set_all(self, items: list[Any]) -> None:
        target = self._stack[-1]
        entries = target.entries if isinstance(target, OpaqueObject) else target
        if type(entries) is not dict:
            raise TypeError("items are set in an object that is not a mapping")
        for key, value in zip(items[::2], items[1::2], strict=True):
            text = key_text(key)
            # Such as two tuples, or 2 and "2". The same text twice replaces the first value.
            if text in entries and not (isinstance(key, str) and self._is_text(entries, text)):
                text = f"{text[:_CUT_KEY]} {len(entries)}"
            if not isinstance(key, str):
                self._no_texts.setdefault(id(entries), (entries, set()))[1].add(text)
            entries[text] = value

    def _is_text(self, entries: dict[str, Any], key: str) -> bool:
        """Whether a key of a mapping was a text in the pickle."""
        return id(entries) not in self._no_texts or key not in self._no_texts[id(entries)][1]

    def _global(self, name: str) -> None:
        self._push_global(*name.split(" ", 1))

    def _stack_global(self, argument: Any) -> None:
        name = self._stack.pop()
        module = self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise TypeError("the name of a global is not a string")
        self._push_global(module, name)

    def _push_global(self, module: str, name: str = "") -> None:
        self._push(GlobalName(self.names.add(module, name)))

    def _reduce(self, argument: Any) -> None:
        arguments = self._stack.pop()
        self._call(self._stack.pop(), arguments)

    def _new_object(self, argument: Any) -> None:
        arguments = self._stack.pop()
        self._build(self._stack.pop(), arguments)
        # An object that is made of values, without a call, is a tuple with names, or a number.
        if isinstance(self._stack[-1], OpaqueObject) and isinstance(arguments, tuple):
            self._stack[-1].elements.extend(arguments)

    def _new_object_with_keywords(self, argument: Any) -> None:
        self._stack.pop()
        self._new_object(argument)

    def _instance(self, name: str) -> None:
        arguments = tuple(self._pop_marked())
        self._push_global(*name.split(" ", 1))
        self._call(self._stack.pop(), arguments)

    def _marked_object(self, argument: Any) -> None:
        function, *arguments = self._pop_marked()
        self._call(function, tuple(arguments))

    def _call(self, function: Any, arguments: Any) -> None:
        self.called[function.name if isinstance(function, GlobalName) else "?"] = None
        self._build(function, arguments)

    def _build(self, function: Any, arguments: Any) -> None:
        name = function.name if isinstance(function, GlobalName) else "?"
        arguments = arguments if isinstance(arguments, tuple) else ()
        self._push(self.build(name, arguments))

    def _set_state(self, argument: Any) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, OpaqueObject):
            # Attributes may come with those of slots, as a pair.
            is_pair = isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict)
            target.state = state[0] if is_pair else state


def _reason(error: Exception) -> str:
    """What is wrong with a pickle, without the words of Python's own errors."""
    if isinstance(error, RecursionError | MemoryError):
        return "its values are nested too deep, or are too large"
    if isinstance(error, LookupError | TypeError | AttributeError):
        return "its instructions do not fit each other"
    if "integer string conversion" in str(error):
        return "it has an integer of thousands of digits"
    if isinstance(error, ValueError) and "unknown" in str(error):
        return "it has an unknown instruction"
    return "it ends early, or has a value that is not valid"


def key_text(key: Any) -> str:
    """Return the key of a mapping as a text: ``0`` for the number 0."""
    if isinstance(key, str):
        return key
    if isinstance(key, GlobalName):
        return key.name
    # Not every tuple or integer: their texts may be much longer than the file.
    if isinstance(key, int) and key.bit_length() > _LARGEST_KEY:
        return "<int>"
    return str(key) if isinstance(key, int | float | None) else f"<{type(key).__name__}>"


def _constant(value: Any) -> Callable[[PlainUnpickler, Any], None]:
    return lambda machine, argument: machine._push(value)


_RUN: dict[str, Callable[[PlainUnpickler, Any], object]] = {
    **{
        opcode.name: PlainUnpickler._push
        for opcode in pickletools.opcodes
        if opcode.arg is not None and opcode.stack_before == []
    },
    "MARK": lambda machine, argument: machine._marks.append(len(machine._stack)),
    "POP": PlainUnpickler._pop,
    "POP_MARK": lambda machine, argument: machine._pop_marked(),
    "DUP": lambda machine, argument: machine._push(machine._stack[-1]),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": lambda machine, argument: machine._push([]),
    "EMPTY_SET": lambda machine, argument: machine._push([]),
    "EMPTY_DICT": lambda machine, argument: machine._push({}),
    "TUPLE": lambda machine, argument: machine._tuple(None),
    "TUPLE1": lambda machine, argument: machine._tuple(1),
    "TUPLE2": lambda machine, argument: machine._tuple(2),
    "TUPLE3": lambda machine, argument: machine._tuple(3),
    "LIST": lambda machine, argument: machine._push(machine._pop_marked()),
    "FROZENSET": lambda machine, argument: machine._push(machine._pop_marked()),
    "DICT": PlainUnpickler._dict,
    "APPEND": lambda machine, argument: machine._extend([machine._stack.pop()]),
    "APPENDS": lambda machine, argument: machine._extend(machine._pop_marked()),
    "ADDITEMS": lambda machine, argument: machine._extend(machine._pop_marked()),
    "SETITEM": PlainUnpickler._set_item,
    "SETITEMS": lambda machine, argument: machine._set_all(machine._pop_marked()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), PlainUnpickler._put),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine._push(machine._memo[index])
    ),
    "GLOBAL": PlainUnpickler._global,
    "STACK_GLOBAL": PlainUnpickler._stack_global,
    **dict.fromkeys(
        ("EXT1", "EXT2", "EXT4"), lambda machine, code: machine._push_global("?", str(code))
    ),
    "REDUCE": PlainUnpickler._reduce,
    "NEWOBJ": PlainUnpickler._new_object,
    "NEWOBJ_EX": PlainUnpickler._new_object_with_keywords,
    "INST": PlainUnpickler._instance,
    "OBJ": PlainUnpickler._marked_object,
    "BUILD": PlainUnpickler._set_state,
    "PERSID": lambda machine, pid: machine._push(machine.resolve(pid)),
    "BINPERSID": lambda machine, argument: machine._push(machine.resolve(machine._stack.pop())),
    "PROTO": lambda machine, argument: None,
    "FRAME": lambda machine, argument: None,
}
