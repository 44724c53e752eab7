"""From the values of a command's options to its request, before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from hookscope.specs.request import (
    InputRequest,
    Interventions,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
    RunOptions,
)

Part = TypeVar("Part")


def request_of(command: str, values: Mapping[str, Any]) -> Request:
    """Return the request that the options of ``command`` make.

    Raises:
        RequestError: a value is wrong, or some do not go together.
    """
    return Request(
        command,
        part_of(ModelRequest, values),
        part_of(LayerSelection, values),
        part_of(InputRequest, values),
        part_of(RunOptions, values),
        part_of(Interventions, values),
        part_of(LossRequest, values) if "loss" in values else None,
    )


def part_of(part: type[Part], values: Mapping[str, Any]) -> Part:
    """Return a part of a request: its fields have the names of the options."""
    names = [field.name for field in fields(part) if field.name in values]  # type: ignore[arg-type]
    return part(**{name: values[name] for name in names})
