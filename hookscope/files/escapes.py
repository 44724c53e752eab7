"""How text that is not ours is shown: names of files, modules and keys, and what libraries say.

A terminal acts on control characters, and bidirectional ones reorder what is read. A newline in a
name would begin a line of its own. All of them are shown as escapes, in every output: tables,
notes, errors, pages and pictures.
"""

from __future__ import annotations


def visible(text: str, ascii: bool = False) -> str:
    r"""Return ``text`` on one line, with everything that would not show written as an escape.

    Control and format characters, lone surrogates and spaces at the end become ``\x1b``, ``\n``,
    ``\u202e``, ``\x20``; with ``ascii`` so does all that lies outside ASCII.

    Example:
        >>> print(visible("a\x1b[31mb"))
        a\x1b[31mb
    """
    body = text.rstrip(" ")
    if not (body.isascii() and body.isprintable()):
        body = "".join(_shown(character, ascii) for character in body)
    return body + r"\x20" * (len(text) - len(text.rstrip(" ")))


def visible_lines(text: str) -> str:
    """Return ``text`` with its newlines and tabs, and all else that would not show escaped."""
    return "".join(c if c in "\n\t" else _shown(c, False) for c in text)


def encodable(text: str) -> str:
    r"""Return ``text`` with lone surrogates, which UTF-8 has no bytes for, as ``\udc80``.

    Bytes of a file's name that are no text come as such, and any string of Python's may hold them.
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
