"""The types of the functions that are called while a long task runs."""

from __future__ import annotations

from collections.abc import Callable

# Called with how much is done, and of how much: bytes, rows or runs, as each function says.
Progress = Callable[[int, int], object]
# Called with the same, and the name of what is being read.
NamedProgress = Callable[[int, int, str], object]
