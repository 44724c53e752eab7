"""Escapes for foreign text: names of files, modules and keys, and messages of libraries.

A terminal interprets control characters, bidirectional characters reorder text, and a newline in a
name would begin a new line. Every output shows them as escapes: tables, notes, errors, HTML pages
and images.
"""

from __future__ import annotations

import re

_LONGEST_WORD = 400  # characters without a space in a message; longer ones are cut


def visible(text: str, ascii: bool = False) -> str:
    r"""Return ``text`` on one line, with characters that are not visible written as escapes.

    Control and format characters, lone surrogates and trailing spaces become ``\x1b``, ``\n``,
    ``\u202e``, ``\x20``. With ``ascii`` all characters outside ASCII are escaped too.

    Example:
        >>> print(visible("a\x1b[31mb"))
        a\x1b[31mb
    """
    body = text.rstrip(" ")
    if not (body.isascii() and body.isprintable()):
        body = "".join(_shown(character, ascii) for character in body)
    return body + r"\x20" * (len(text) - len(text.rstrip(" ")))


def bounded(text: str, most: int) -> str:
    """Return a message of at most about ``most`` characters, whatever it quotes from a file.

    A long word, such as a name from a damaged file, is cut first, and then the whole text; what is
    cut is in the middle.

    Example:
        >>> bounded("There is no 'a' here.", 100)
        "There is no 'a' here."
        >>> bounded("a" * 2000, 1000).count("a") < 310
        True
    """
    if len(text) > _LONGEST_WORD:
        text = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: _without_middle(word[0], 300), text)
    return _without_middle(text, most)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = most * 2 // 3
    left_out = f" ... ({len(text) - most:,} characters left out) ... "
    return text[:head] + left_out + text[head - most :]


def visible_lines(text: str) -> str:
    """Return ``text`` with newlines and tabs, and other characters that are not visible escaped."""
    return "".join(c if c in "\n\t" else _shown(c, False) for c in text)


def encodable(text: str) -> str:
    r"""Return ``text`` with lone surrogates, which UTF-8 cannot encode, as ``\udc80``.

    Bytes of a file name that are not UTF-8 become surrogates; other strings may have them too.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _shown(character: str, ascii: bool) -> str:
    if character.isprintable() and (character.isascii() or not ascii):
        return character
    return character.encode("unicode_escape").decode("ascii")
