"""Settings files: where they are found, what they may contain, and which of two files wins.

Names of options stand at the top for every command that knows them, or in a table for one::

    device = "cuda"

    [capture]
    layer = ["layer3.*"]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookscope.errors import SettingsError
from hookscope.files.suggestions import did_you_mean
from hookscope.files.toml_text import parse_toml

if TYPE_CHECKING:  # keeps --help fast
    from pathlib import Path

FILE_NAME = "hookscope.toml"
_REPOSITORY = (".git", ".hg")  # the root of a repository has one of them


class SettingsFile(NamedTuple):
    """A settings file, read once."""

    path: Path
    table: Mapping[str, Any]
    found: bool


class FileSetting(NamedTuple):
    """One value and the file that it was read from."""

    value: Any
    file: SettingsFile

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.file.path


class KnownKeys(NamedTuple):
    """The keys of settings files: those for all commands, and those of each command."""

    common: Collection[str]
    commands: Mapping[str, Collection[str]]


Vocabulary = Callable[[], KnownKeys]


class Settings(NamedTuple):
    """The settings in ``files``, the weakest first, by command and key.

    Files in ``ignored`` belong to another user.
    """

    files: tuple[SettingsFile, ...] = ()
    values: Mapping[str, Mapping[str, FileSetting]] = {}
    ignored: tuple[Path, ...] = ()

    def of(self, command: str) -> Mapping[str, FileSetting]:
        """Return what the files say about ``command``."""
        return self.values.get(command, {})


def load(vocabulary: Vocabulary, user_folder: Path, start: Path | None) -> Settings:
    """Read the user's file and the project's file above ``start``; the project's wins."""
    ignored: list[Path] = []
    user = user_folder / FILE_NAME
    own = _read(user, ignored, found=False) if user.is_file() else None
    project = find_project(start, ignored) if start is not None else None
    files = [own] if own else []
    # Folders are compared rather than files: a link to the user's file is a project's file.
    if project and not (own and os.path.samefile(project.path.parent, user_folder)):
        files.append(project)
    return Settings(tuple(files), _merge(files, vocabulary), tuple(dict.fromkeys(ignored)))


def load_file(vocabulary: Vocabulary, path: Path) -> Settings:
    """Read ``path`` and no other file."""
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise SettingsError(
            f"The settings file {path} {kind}.",
            "Name a TOML file with --config, or ignore settings files with --no-config.",
        )
    file = _read(path, None, found=False)
    files = [file] if file else []
    return Settings(tuple(files), _merge(files, vocabulary))


def find_project(start: Path, ignored: list[Path]) -> SettingsFile | None:
    """Return the nearest settings file in ``start`` or above, up to a repository root or home."""
    for folder in _folders(start):
        for path in (folder / FILE_NAME, folder / "pyproject.toml"):
            file = _read(path, ignored, found=True) if path.is_file() else None
            if file:
                return file
    return None


def _folders(start: Path) -> Iterator[Path]:
    """The folders to search, ``start`` first."""
    home = os.path.realpath(os.path.expanduser("~"))
    for folder in (start, *start.parents):
        yield folder
        if os.path.realpath(folder) == home:
            return
        if any(os.path.lexists(folder / name) for name in _REPOSITORY):
            return


def _merge(
    files: list[SettingsFile], read_vocabulary: Vocabulary
) -> Mapping[str, Mapping[str, FileSetting]]:
    merged: dict[str, dict[str, FileSetting]] = {}
    if not files:
        return merged
    vocabulary = read_vocabulary()
    for file in files:
        tables = {k: v for k, v in file.table.items() if isinstance(v, dict)}
        top = {k: v for k, v in file.table.items() if k not in tables}
        common = _checked(top, vocabulary, "", file)
        for name in tables:
            if name not in vocabulary.commands:
                raise _unknown(file.path, f"table [{name}]", name, vocabulary.commands)
        # A command's table overrides the top level of the same file, but not that of a stronger
        # file.
        for command, keys in vocabulary.commands.items():
            own = _checked(tables.get(command, {}), vocabulary, command, file)
            shared = {key: setting for key, setting in common.items() if key in keys}
            if shared or own:
                merged.setdefault(command, {}).update(shared | own)
    return merged


def _checked(
    table: Mapping[str, Any], vocabulary: KnownKeys, command: str, file: SettingsFile
) -> dict[str, FileSetting]:
    path = file.path
    keys = vocabulary.commands[command] if command else vocabulary.common
    settings = {}
    for written, value in table.items():
        key = written.replace("_", "-")
        if key not in keys:
            if command:
                raise _unknown(path, f"key {written!r} in [{command}]", key, keys)
            raise _misplaced(path, written, value, vocabulary)
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, (str, int, float)) for item in items):
            raise SettingsError(
                f"{path}: {written!r} must be a text, a number, true, false, or a list of them.",
                "Write it as on the command line.",
            )
        settings[key] = FileSetting(value, file)
    return settings


def _unknown(path: Path, what: str, word: str, known: Collection[str]) -> SettingsError:
    hint = did_you_mean(word, known) or f"Valid names: {', '.join(sorted(known))}."
    return SettingsError(f"{path}: unknown {what}.", hint)


def _misplaced(path: Path, written: str, value: Any, vocabulary: KnownKeys) -> SettingsError:
    key = written.replace("_", "-")
    owners = [name for name, keys in vocabulary.commands.items() if key in keys]
    if not owners:
        return _unknown(path, f"key {written!r}", key, vocabulary.common)
    first, *others = sorted(owners, key=lambda name: name != "capture")  # the most usual one
    prefix = "tool.hookscope." if path.name == "pyproject.toml" else ""
    line = f"{written} = {json.dumps(value, ensure_ascii=False, default=str)}"
    also = f" (or for {', '.join(f'[{name}]' for name in others)})" if others else ""
    return SettingsError(
        f"{path}: {written!r} is not a setting for all commands.",
        f"At the end of the file write the line [{prefix}{first}] and below it: {line}{also}",
    )


def _read(path: Path, ignored: list[Path] | None, *, found: bool) -> SettingsFile | None:
    """Read a settings file; None if it has no settings, or is another user's and ignored."""
    try:
        with path.open("rb") as opened:
            foreign = ignored is not None and _is_foreign(path, opened.fileno())
            content = opened.read()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The settings file {path} cannot be read: {error}.",
            "Fix it, or ignore settings files with --no-config.",
        ) from error
    shared = path.name == "pyproject.toml"
    # Errors in another tool's pyproject.toml are ignored.
    if shared and "hookscope" not in text:
        return None
    if foreign and ignored is not None:
        if not shared or "[tool.hookscope" in text:
            ignored.append(path)
        return None
    table = _table_in(text, path, shared)
    return None if table is None else SettingsFile(path, table, found)


def _is_foreign(path: Path, opened: int) -> bool:
    """Whether a file, or the link that leads to it, belongs to neither this user nor root.

    Root can write any file, this user's own settings included. Windows has no such number.
    """
    if sys.platform == "win32":
        return False
    owners = {os.lstat(path).st_uid, os.fstat(opened).st_uid}
    return not owners <= {os.geteuid(), 0}


def _table_in(text: str, path: Path, shared: bool) -> dict[str, Any] | None:
    """The settings in a text; None for a ``pyproject.toml`` that has none."""
    try:
        content = parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"The settings file {path} is not valid TOML: {error}.",
            "Fix it, or ignore settings files with --no-config.",
        ) from error
    if not shared:
        return content
    tools = content.get("tool", {})
    table = tools.get("hookscope") if isinstance(tools, dict) else None
    return table if isinstance(table, dict) else None
