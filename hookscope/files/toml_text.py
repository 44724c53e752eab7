"""TOML, which Python has a reader for from 3.11 on."""

from __future__ import annotations

import sys
from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a text; ValueError or RecursionError if it is not TOML.

    >>> parse_toml('"a.b" = "c"')
    {'a.b': 'c'}
    """
    # Imported late: most runs find no settings file, and --help must be fast.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
