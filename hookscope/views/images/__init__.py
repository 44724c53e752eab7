"""Tensors as images: which part is drawn and in which colours, as arrays of numpy."""

from __future__ import annotations

from functools import partial

from hookscope.files.optional_packages import optional_package

require_matplotlib = partial(optional_package, "matplotlib", "plot", "A picture")
