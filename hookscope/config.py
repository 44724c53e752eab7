"""Settings files: where they are found, what they may hold, and which of two files wins.

A project has ``hookscope.toml``, or a table ``[tool.hookscope]`` in ``pyproject.toml``, in the
working folder or above it; a user has ``hookscope.toml`` in the user's own settings folder. Both
have the same form: names of options at the top for every command that knows them, and a table for
one command::

    device = "cuda"

    [capture]
    layer = ["layer3.*"]

Only files are read here. The command line lays environment variables and flags over them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookscope.errors import SettingsError
from hookscope.suggest import did_you_mean

if TYPE_CHECKING:  # --help is quicker without it
    from pathlib import Path

FILE_NAME = "hookscope.toml"


class Setting(NamedTuple):
    """One value and the file that it was read from."""

    value: Any
    path: Path


class Vocabulary(NamedTuple):
    """What a settings file may name: keys for all commands, and the keys of each command."""

    common: Collection[str]
    commands: Mapping[str, Collection[str]]


class Settings(NamedTuple):
    """The merged content of the settings files.

    ``files`` are those that were read, the weakest first. ``values`` has one mapping from key
    (``max-bytes``) to :class:`Setting` for each command that a file says something about.
    """

    files: tuple[Path, ...] = ()
    values: Mapping[str, Mapping[str, Setting]] = {}

    def of(self, command: str) -> Mapping[str, Setting]:
        """Return what the files say about ``command``."""
        return self.values.get(command, {})


def load(vocabulary: Vocabulary, user_folder: Path, start: Path) -> Settings:
    """Read the user's file and the project's file above ``start``; the project's wins.

    Raises:
        SettingsError: a file cannot be read, or names something that does not exist.
    """
    user = user_folder / FILE_NAME
    files = [user] if user.is_file() else []
    project = find_project(start)
    if project is not None and project != user:
        files.append(project)
    return _merge(files, vocabulary)


def load_file(vocabulary: Vocabulary, path: Path) -> Settings:
    """Read ``path`` and no other file.

    Raises:
        SettingsError: the file cannot be read, or names something that does not exist.
    """
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise SettingsError(
            f"The settings file {path} {kind}.",
            "Name a TOML file with --config, or leave settings files out with --no-config.",
        )
    return _merge([path], vocabulary)


def find_project(start: Path) -> Path | None:
    """Return the nearest settings file in ``start`` or a folder above it.

    In one folder ``hookscope.toml`` comes before ``pyproject.toml``, and a ``pyproject.toml``
    that has no ``[tool.hookscope]`` is passed over.
    """
    for folder in (start, *start.parents):
        own = folder / FILE_NAME
        if own.is_file():
            return own
        shared = folder / "pyproject.toml"
        if shared.is_file() and _table_of(shared) is not None:
            return shared
    return None


def _merge(files: list[Path], vocabulary: Vocabulary) -> Settings:
    merged: dict[str, dict[str, Setting]] = {}
    for path in files:
        table = _table_of(path) or {}
        tables = {k: v for k, v in table.items() if isinstance(v, dict)}
        common = _checked({k: v for k, v in table.items() if k not in tables}, vocabulary, "", path)
        for name in tables:
            if name not in vocabulary.commands:
                raise _unknown(path, f"table [{name}]", name, vocabulary.commands)
        # A command's own table beats the top of the same file, and never the file above it.
        for command, keys in vocabulary.commands.items():
            own = _checked(tables.get(command, {}), vocabulary, command, path)
            shared = {key: setting for key, setting in common.items() if key in keys}
            if shared or own:
                merged.setdefault(command, {}).update(shared | own)
    return Settings(tuple(files), merged)


def _checked(
    table: Mapping[str, Any], vocabulary: Vocabulary, command: str, path: Path
) -> dict[str, Setting]:
    keys = vocabulary.commands[command] if command else vocabulary.common
    found = {}
    for written, value in table.items():
        key = written.replace("_", "-")
        if key not in keys:
            if command:
                raise _unknown(path, f"key {written!r} in [{command}]", key, keys)
            raise _misplaced(path, written, key, vocabulary)
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, (str, int, float)) for item in items):
            raise SettingsError(
                f"{path}: {written!r} must be a text, a number, true, false, or a list of them.",
                "Write it as the option is written on the command line.",
            )
        found[key] = Setting(value, path)
    return found


def _unknown(path: Path, what: str, word: str, known: Collection[str]) -> SettingsError:
    hint = did_you_mean(word, known) or f"Known here: {', '.join(sorted(known))}."
    return SettingsError(f"{path}: unknown {what}.", hint)


def _misplaced(path: Path, written: str, key: str, vocabulary: Vocabulary) -> SettingsError:
    owners = [f"[{name}]" for name, keys in vocabulary.commands.items() if key in keys]
    if not owners:
        return _unknown(path, f"key {written!r}", key, vocabulary.common)
    return SettingsError(
        f"{path}: {written!r} is not a key for all commands.",
        f"Write it under the command that it is for: {', '.join(owners)}.",
    )


def _table_of(path: Path) -> dict[str, Any] | None:
    """The settings in a file; None for a ``pyproject.toml`` that has none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The settings file {path} cannot be read: {error}.",
            "Repair it, or leave settings files out with --no-config.",
        ) from error
    shared = path.name == "pyproject.toml"
    # Another tool's broken pyproject.toml is not ours to complain about.
    if shared and "hookscope" not in text:
        return None
    try:
        content = _parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"The settings file {path} is not valid TOML: {error}.",
            "Repair it, or leave settings files out with --no-config.",
        ) from error
    if not shared:
        return content
    tools = content.get("tool", {})
    table = tools.get("hookscope") if isinstance(tools, dict) else None
    return table if isinstance(table, dict) else None


def _parse_toml(text: str) -> dict[str, Any]:
    # Imported late: most runs find no settings file, and --help must stay quick.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
