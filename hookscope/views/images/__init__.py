"""Tensors as images: which part is drawn and in which colours, as arrays of numpy."""

from __future__ import annotations

from hookscope.files.optional_packages import optional_package


def require_matplotlib() -> None:
    """Import matplotlib, and report a failed import as an error with a hint."""
    with optional_package("matplotlib", "plot", "A picture"):
        import matplotlib.figure  # noqa: F401
