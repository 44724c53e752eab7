"""How image files become images: exactly, or quicker where they are far larger than needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookscope.inputs import images

DECODERS: dict[str, Callable[..., Any]] = {"exact": images.decode}
