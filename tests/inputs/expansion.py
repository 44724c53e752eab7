"""The texts of parsed input specs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hookscope.specs.input_spec import parse_inputs


def expand_inputs(specs: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return one spec for each file and each other input that ``specs`` stand for."""
    return [spec.text for spec in parse_inputs(specs)]
