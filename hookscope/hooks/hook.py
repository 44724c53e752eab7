"""A function as a hook: called only for the threads of a recording, and left out of copies."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import get_ident
from typing import Any

from torch import nn

from hookscope.tensors.threads import RecordingThreads


class Hook:
    """A function that is called as a hook, for the calls that belong to a recording.

    For a call by another thread it returns None, which changes nothing. It accepts any arguments:
    PyTorch reads from a second dict whether a hook takes keyword arguments, and a call that is
    running while the hook is removed may find the hook without that entry.
    """

    __slots__ = ("_elsewhere", "_module", "_threads", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        threads: RecordingThreads,
        elsewhere: set[nn.Module],
        module: nn.Module | None = None,
    ) -> None:
        self.function = function
        self._threads = threads
        self._elsewhere = elsewhere
        self._module = module

    def __call__(self, *args: Any) -> Any:
        """Call the function as ``as_hook`` does, or do nothing."""
        # The usual cases are written out: this runs once or twice in each call of a module.
        if get_ident() == self._threads.opener or self._threads.includes_current_thread():
            if depth_readers:
                return as_hook(self.function, *args)
            return self.function(*args)
        if self._module is not None:
            self._elsewhere.add(self._module)
        return None


def leave_out_of_copies(hooks: HookDict, *options: HookDict) -> None:
    """Leave our entries out of copies and pickles of a module's dict of hooks, and of others.

    ``options`` are the dicts with the settings of each hook. ``copy`` and ``pickle`` look for
    ``__reduce__`` on the object before its class.
    """
    if "__reduce__" not in vars(hooks):  # another recording may have put it there
        ours = weakref.ref(hooks)  # weak, or each dict would refer to itself
        for members in (hooks, *options):
            reduced = partial(_without_ours, weakref.ref(members), ours)
            members.__reduce__ = reduced  # type: ignore[method-assign]


HookDict = dict[int, Any]  # an OrderedDict, which can have attributes


def _without_ours(
    members: weakref.ref[HookDict], hooks: weakref.ref[HookDict]
) -> tuple[type, tuple[()], None, None, Iterator[tuple[int, Any]]]:
    ours: Mapping[int, Any] = hooks() or {}
    items = [
        (number, value)
        for number, value in (members() or {}).items()
        if not isinstance(ours.get(number), Hook)
    ]
    return OrderedDict, (), None, None, iter(items)


def keep_in_copies(hooks: HookDict, *options: HookDict) -> None:
    """Restore the normal copying of the dicts once none of our hooks is left."""
    if not hooks or not any(isinstance(hook, Hook) for hook in hooks.values()):
        for members in (hooks, *options):
            vars(members).pop("__reduce__", None)


class _Depth(threading.local):
    hooks = 0


_depth = _Depth()

# Who needs ``hook_depth`` now. If there is nobody, calls of hooks are not counted.
depth_readers: set[object] = set()


def as_hook(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as a hook: what it computes is not part of the model."""
    _depth.hooks += 1
    try:
        return function(*args, **kwargs)
    finally:
        _depth.hooks -= 1


def hook_depth() -> int:
    """Return the number of nested calls of ``as_hook`` on this thread, for ``depth_readers``."""
    return _depth.hooks
