"""All tables of examples in one."""

from __future__ import annotations

from tests.sources.torchscript.examples import Example
from tests.sources.torchscript.programs_classes import CLASSES
from tests.sources.torchscript.programs_containers import CONTAINERS
from tests.sources.torchscript.programs_control import CONTROL
from tests.sources.torchscript.programs_features import FEATURES
from tests.sources.torchscript.programs_library import LIBRARY
from tests.sources.torchscript.programs_modules import MODULES
from tests.sources.torchscript.programs_numbers import NUMBERS
from tests.sources.torchscript.programs_strings import STRINGS
from tests.sources.torchscript.programs_tensors import TENSORS
from tests.sources.torchscript.programs_types import TYPES

TABLES = (
    CLASSES,
    CONTAINERS,
    CONTROL,
    FEATURES,
    LIBRARY,
    MODULES,
    NUMBERS,
    STRINGS,
    TENSORS,
    TYPES,
)
EXAMPLES: dict[str, Example] = {
    name: example for table in TABLES for name, example in table.examples.items()
}
assert len(EXAMPLES) == sum(len(table.examples) for table in TABLES), "a name stands in two tables"
