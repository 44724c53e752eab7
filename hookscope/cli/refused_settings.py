"""What a settings file that was found, perhaps in a download, may not set.

Naming the file with ``--config`` trusts it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookscope.cli.settings_files import FileSetting
from hookscope.files.output_path import ADDRESS
from hookscope.files.shell_words import quote_word
from hookscope.specs import input_spec as words
from hookscope.specs import model_spec as spec

# The keys that can name Python code, or arguments of it, with a test of their values. Weights,
# targets and the files of edits are read without running code in them.
_NAMES_CODE: Mapping[str, Callable[[str], bool]] = {
    "model": spec.may_name_code,
    "input": words.may_name_code,
    "loss": spec.may_name_function,
    **dict.fromkeys(("hook", "hook-arg", "model-arg", "method"), lambda value: True),
}
_ARGUMENTS = ("hook-arg", "model-arg")
_NEVER = ("force", "trust")
_OUTPUTS = ("output", "chrome")


class RefusedSetting(NamedTuple):
    """A value that a file may not set, with the reason and a hint."""

    setting: FileSetting
    message: str
    hint: str


def names_code(key: str, value: Any) -> bool:
    """Whether the value of a key names Python code, or is an argument of it."""
    test = _NAMES_CODE.get(key)
    items = value if isinstance(value, list) else [value]
    return test is not None and any(test(str(item)) for item in items)


def check_setting(key: str, setting: FileSetting) -> RefusedSetting | None:
    """Return why a file may not set the value of a key; None if it may."""
    file, value = setting.file, setting.value
    if not file.found:
        return None
    name_it = f"name the file with --config {quote_word(str(file.path))}."
    if key in _NEVER and value is not False:
        message = f"{file.path} sets {key}, which a project's settings file may not set."
        more = "." if key == "trust" else f", or {name_it}"  # no file sets trust
        return RefusedSetting(setting, message, f"Type --{key}{more}")
    if key in _OUTPUTS and not _lies_inside(str(value), file.path.parent):
        message = f"{key} = {value!r} in {file.path} is outside the folder of that file."
        return RefusedSetting(setting, message, f"Type --{key}, or {name_it}")
    if not names_code(key, value):
        return None
    runs = "is passed to Python code" if key in _ARGUMENTS else "names Python code"
    message = f"{file.path} sets {key} = {value!r}, which {runs}; a project's file may not do that."
    return RefusedSetting(setting, message, f"Read the file. Then {name_it}")


def _lies_inside(output: str, folder: Path) -> bool:
    """Whether a path, with links resolved, is inside a folder."""
    if ADDRESS in output or output.startswith("~"):  # an address, or a home folder
        return False
    return Path(os.path.realpath(output)).is_relative_to(os.path.realpath(folder))
