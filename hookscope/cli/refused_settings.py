"""What a settings file that was found, perhaps in a download, may not set.

Naming the file with ``--config`` trusts it.
"""

from __future__ import annotations

from typing import NamedTuple

from hookscope.cli.settings_files import FileSetting
from hookscope.files.shell_words import quote_word
from hookscope.specs.names_in_files import refused_name

_NEVER = ("force", "trust")


class RefusedSetting(NamedTuple):
    """A value that a file may not set, with the reason and a hint."""

    setting: FileSetting
    message: str
    hint: str


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
    refused = refused_name(key, value, file.path.parent)
    if refused is None:
        return None
    hint = f"Read the file. Then {name_it}" if refused.runs_code else f"Type --{key}, or {name_it}"
    return RefusedSetting(setting, refused.sentence(file.path, "a project's file"), hint)
