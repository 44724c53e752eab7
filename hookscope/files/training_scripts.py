"""Python files that train a model."""

from __future__ import annotations

import ast
import os
from pathlib import Path


def calls_backward(path: str | os.PathLike[str]) -> bool:
    """Return whether the code of a file calls a method ``backward``; it is not run."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in called)
