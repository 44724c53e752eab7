"""Builds the request of a command from the values of its options, before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions

Part = TypeVar("Part")


def build_request(command: str, values: Mapping[str, Any]) -> Request:
    """Return the request that the options of ``command`` make."""
    parts = [ModelRequest, LayerSelection, InputRequest, RunOptions]
    parts += [LossRequest] if "loss" in values else []
    return Request.of(command, [build_part(part, values) for part in parts])


def build_part(part: type[Part], values: Mapping[str, Any]) -> Part:
    """Return a part of a request: its fields have the names of the options."""
    names = [field.name for field in fields(part) if field.name in values]  # type: ignore[arg-type]
    return part(**{name: values[name] for name in names})
