"""The variables of a frame, read without a change to what the program holds of them.

Before Python 3.13, reading ``f_locals`` of a function's frame writes its variables into a dict that
the frame keeps: the very dict that ``locals()`` has returned to the program. In these versions the
variables are read from the frame itself, as CPython lays it out in memory.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from types import CellType, FrameType
from typing import Any

_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__  # of each object: the count of references and the type
_VERSION = sys.version_info[:2]


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return a new dict of the variables of a frame that have a value.

    It is empty if they can only be read with a change: in a class body with ``__class__`` cells, in
    a namespace that is no dict, and where frames are not those of CPython.

    >>> def function():
    ...     held, later = locals(), 1
    ...     return sorted(variables_of(sys._getframe())), held
    >>> function()
    (['held', 'later'], {})
    """
    code = frame.f_code
    if code.co_flags & inspect.CO_OPTIMIZED and _VERSION < (3, 13):
        return _read(frame)
    if code.co_cellvars and _VERSION < (3, 13):
        return {}
    variables = frame.f_locals
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    return dict(variables) if is_function or type(variables) is dict else {}


def _read(frame: FrameType) -> dict[str, Any]:
    code, found = frame.f_code, dict[str, Any]()
    cells = code.co_cellvars
    if _VERSION > (3, 10):  # an argument that is a cell has one place
        cells = tuple(name for name in cells if name not in code.co_varnames)
    in_cells = {*code.co_cellvars, *code.co_freevars}
    address = _first_variable(frame)
    for name in (*code.co_varnames, *cells, *code.co_freevars) if address else ():
        try:
            value: Any = ctypes.py_object.from_address(address).value
            is_cell = type(value) is CellType and name in in_cells
            found[name] = value.cell_contents if is_cell else value
        except ValueError:  # it has no value
            pass
        address += _WORD
    return found


def _first_variable(frame: FrameType) -> int:
    """The address of the first variable; 0 if the frame is not laid out as it should be."""
    if _VERSION == (3, 10):
        code = id(frame) + _HEAD + 2 * _WORD  # behind the size and ``f_back``
        first = id(frame) + FrameType.__basicsize__ - _WORD
    else:
        inner = _word(id(frame) + _HEAD + _WORD)  # the _PyInterpreterFrame, behind ``f_back``
        code = inner + (4 if _VERSION == (3, 11) else 0) * _WORD
        first = inner + 8 * _WORD + 8
    return first if _word(code) == id(frame.f_code) else 0


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
