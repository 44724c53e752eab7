"""The functions that a caller may give to be told how far a long task is."""

from __future__ import annotations

from collections.abc import Callable

# Called with how much is done, and of how much: bytes, rows or runs, as each function says.
Progress = Callable[[int, int], object]
# Called with the same, and the name of what is being read.
NamedProgress = Callable[[int, int, str], object]
