"""Command lines that a user can copy: each word is quoted for the shell of the system.

POSIX shells take single quotes. ``cmd.exe`` and PowerShell, the shells of Windows, both take double
quotes, and ``cmd.exe`` takes nothing else.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable

# In both shells of Windows. PowerShell splits a word at a comma and takes @NAME for a variable.
_PLAIN = re.compile(r"[\w.:/\\=+~-]+", re.ASCII)


def join_words(words: Iterable[str], platform: str = sys.platform) -> str:
    """Return a command line for a shell."""
    return " ".join(quote_word(word, platform) for word in words)


def cite_command(*words: str, platform: str = sys.platform) -> str:
    """Return a command line in quotation marks, to stand in a sentence.

    >>> print(cite_command("hookscope", "show", "net.safetensors", platform="linux"))
    'hookscope show net.safetensors'
    >>> print(cite_command("hookscope", "show", "my net.safetensors", platform="linux"))
    "hookscope show 'my net.safetensors'"
    """
    line = join_words(words, platform)
    mark = '"' if "'" in line else "'"
    return f"{mark}{line}{mark}"


def quote_word(word: str, platform: str = sys.platform) -> str:
    r"""Return one word of a command line, in quotes where the shell needs them.

    >>> quote_word("conv*", "linux"), quote_word("conv*", "win32")
    ("'conv*'", '"conv*"')
    >>> print(quote_word(r"C:\runs\a.safetensors", "win32"))
    C:\runs\a.safetensors
    """
    if platform != "win32":
        return shlex.quote(word)
    if _PLAIN.fullmatch(word):
        return word
    # A program on Windows reads backslashes before a double quote in pairs.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', word)
    doubled = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{doubled}"'
