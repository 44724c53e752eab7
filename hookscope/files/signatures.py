"""Signatures of functions, read without computing their annotations."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of ``function``, without computing its annotations.

    From Python 3.14 on ``inspect.signature`` evaluates annotations, and raises NameError for what
    is imported for type checkers alone.

    Raises:
        TypeError: ``function`` cannot be called.
        ValueError: it is written in C, without a signature.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
