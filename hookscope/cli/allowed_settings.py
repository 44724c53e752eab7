"""What a settings file that was found may set, and which files the user has allowed to name code.

A file in the working folder or above may come with a download. It may not set force or trust, or an
output outside its folder. It may name Python code once the user has allowed it: its path and the
hash of its content are then recorded in the user's folder. Any change of the file needs a new
permission.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookscope.cli.settings_files import Setting, SettingsFile
from hookscope.errors import StoreError, cause
from hookscope.files.output_path import ADDRESS
from hookscope.specs import input_spec as words
from hookscope.specs import model_spec as spec

ALLOW = "hookscope config --allow"
FOLDER = "allowed"  # in the user's settings folder, one file for each settings file

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

    setting: Setting
    message: str
    hint: str


def names_code(key: str, value: Any) -> bool:
    """Whether the value of a key names Python code, or is an argument of it."""
    test = _NAMES_CODE.get(key)
    items = value if isinstance(value, list) else [value]
    return test is not None and any(test(str(item)) for item in items)


def check_setting(key: str, setting: Setting, user_folder: Path) -> RefusedSetting | None:
    """Return why a file may not set the value of a key; None if it may."""
    file, value = setting.file, setting.value
    if not file.found:
        return None
    if key in _NEVER and value is not False:
        message = f"{file.path} sets {key}, which a project's settings file may not set."
        return RefusedSetting(setting, message, f"Type --{key}.")
    if key in _OUTPUTS and not _lies_inside(str(value), file.path.parent):
        message = f"{key} = {value!r} in {file.path} is outside the folder of that file."
        return RefusedSetting(setting, message, f"Type --{key}, or name the file with --config.")
    if not names_code(key, value):
        return None
    recorded = _recorded(user_folder, file.path)
    if recorded != file.sha256:
        why = "has changed since it was allowed" if recorded else "is not allowed"
        message = f"{file.path} sets {key} = {value!r}, but {why} to name Python code."
        if key in _ARGUMENTS:
            message = f"{file.path} sets {key} = {value!r}, which is passed to Python code, and the"
            message += f" file {why}."
        return RefusedSetting(setting, message, f"Read the file. Then run: {ALLOW}")
    if not _is_same_everywhere(key, value) and Path.cwd() != file.path.parent:
        message = f"{key} = {value!r} in {file.path} names code relative to the working folder."
        hint = f"Run the command in {file.path.parent}, type --{key}, or write an absolute path."
        return RefusedSetting(setting, message, hint)
    return None


def allow(user_folder: Path, file: SettingsFile) -> None:
    """Record that a file may name code, as long as its content stays the same."""
    path = _record_of(user_folder, file.path)
    text = json.dumps({"path": str(file.path), "sha256": file.sha256})
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {cause(error)}.",
            f"Name the settings file instead: --config {file.path}",
        ) from error


def revoke(user_folder: Path, file: SettingsFile) -> bool:
    """Revoke the permission; return whether there was one."""
    path = _record_of(user_folder, file.path)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be removed: {cause(error)}.", "Remove it.") from error
    return True


def is_allowed(user_folder: Path, file: SettingsFile) -> bool:
    """Whether the user has allowed this file with this content."""
    return _recorded(user_folder, file.path) == file.sha256


def _recorded(user_folder: Path, path: Path) -> str:
    """Return the hash that was allowed for a path, or an empty string."""
    try:
        record = json.loads(_record_of(user_folder, path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    same = isinstance(record, dict) and record.get("path") == str(path)
    return str(record.get("sha256", "")) if same else ""


def _record_of(user_folder: Path, path: Path) -> Path:
    from hashlib import sha256

    return user_folder / FOLDER / f"{sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def _lies_inside(output: str, folder: Path) -> bool:
    """Whether a path, with links resolved, is inside a folder."""
    if ADDRESS in output or output.startswith("~"):  # an address, or a home folder
        return False
    return Path(os.path.realpath(output)).is_relative_to(os.path.realpath(folder))


def _is_same_everywhere(key: str, value: Any) -> bool:
    """Whether a value names the same code from every working folder.

    Modules are searched in the working folder first.
    """
    if key in ("hook-arg", "model-arg", "method"):
        return True
    texts = [str(item) for item in (value if isinstance(value, list) else [value])]
    if key in ("hook", "input"):  # GLOB=FILE.py:FUNCTION, NAME=FILE.py:FUNCTION
        texts = [text.partition("=")[2] or text for text in texts]
    return all(map(os.path.isabs, texts))
