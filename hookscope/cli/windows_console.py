"""Escape sequences for colour and cursor on Windows, whose consoles ignore them by default.

A program has to enable them for the console that it writes to. Consoles before Windows 10 do not
know them. Terminals of other systems need nothing.
"""

from __future__ import annotations

import sys

_STANDARD_HANDLES = (-11, -12)  # standard output, standard error
_PROCESS_ESCAPES = 0x0004  # ENABLE_VIRTUAL_TERMINAL_PROCESSING


def enable_escape_sequences() -> bool:
    """Enable escape sequences; return whether they can be written to a terminal.

    On Windows the result is False without a console too, as when both streams are files.
    """
    if sys.platform == "win32":
        import ctypes
        from ctypes import wintypes

        kernel32 = ctypes.WinDLL("kernel32")
        kernel32.GetStdHandle.restype = wintypes.HANDLE  # which has 64 bits, and the default 32
        enabled = False
        for number in _STANDARD_HANDLES:
            handle = wintypes.HANDLE(kernel32.GetStdHandle(wintypes.DWORD(number & 0xFFFFFFFF)))
            mode = wintypes.DWORD()
            if kernel32.GetConsoleMode(handle, ctypes.byref(mode)):  # fails for a file or a pipe
                wanted = wintypes.DWORD(mode.value | _PROCESS_ESCAPES)
                enabled |= bool(kernel32.SetConsoleMode(handle, wanted))
        return enabled
    return True
