"""The spec of a split of a data set for the package ``datasets``: on a hub, or in a folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hookscope.errors import InputError
from hookscope.files.optional_packages import optional_package

_PREFIX = "hub:"
_SPEC = re.compile(r"hub:(?P<name>[^@]+?)(@(?P<config>[^:@]+))?:(?P<split>\w+)(:(?P<column>.+))?")
_WRITE = "Write hub:NAME:SPLIT or hub:NAME:SPLIT:COLUMN, with NAME@CONFIG if it has configurations."


@dataclass(frozen=True)
class HubSource:
    """A split of a data set: of a hub by its name, or of a folder by its path."""

    spec: str
    name: str
    config: str | None
    split: str
    column: str | None

    @property
    def path(self) -> str:
        """The spec without the column."""
        return self.spec.removesuffix(f":{self.column}") if self.column else self.spec


def names_hub(spec: str) -> bool:
    """Whether an input is a split of a data set of the package ``datasets``.

    >>> names_hub("hub:imdb:train"), names_hub("photos/")
    (True, False)
    """
    return spec.startswith(_PREFIX) and not os.path.lexists(spec)


def hub_source(input: Any) -> HubSource | None:
    """Return the data set that the input of ``extract`` names; None for another input.

    >>> source = hub_source("hub:glue@sst2:train:sentence")
    >>> source.name, source.config, source.split, source.column
    ('glue', 'sst2', 'train', 'sentence')
    """
    values = input if isinstance(input, list | tuple) else [input]
    specs = [os.fspath(value) for value in values if isinstance(value, str | os.PathLike)]
    hubs = [spec for spec in specs if names_hub(spec)]
    if not hubs:
        return None
    if len(values) > 1:
        raise InputError(f"{hubs[0]!r} must be the only input.", "Run the command once for each.")
    parts = _SPEC.fullmatch(hubs[0])
    if parts is None:
        raise InputError(f"{hubs[0]!r} does not name a split.", _WRITE)
    with optional_package("datasets", "datasets", repr(hubs[0])):
        if find_spec("datasets") is None:  # it takes seconds to import, and torch with it
            raise ModuleNotFoundError(name="datasets")
    name = os.path.expanduser(parts["name"])
    return HubSource(hubs[0], name, parts["config"], parts["split"], parts["column"])
