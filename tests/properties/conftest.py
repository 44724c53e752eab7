"""What the properties share: a folder with all sources, and commands that run in this process."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hookscope.cli import run_context
from hookscope.cli.main import main
from tests.properties.minimal_requests import write_sources

Files = dict[str, bytes]


class Answer(NamedTuple):
    """What a command printed, its exit status, and the files that it wrote."""

    status: int
    out: str
    err: str
    files: Files


def files_in(folder: Path) -> Files:
    """All files below a folder, without what Python compiles."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="session")
def kept_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    return folder


class Workplace:
    """The folder of the sources, in which requests run; what they write is taken away again."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self._kept = set(files_in(folder))

    def shell(self, command: str, words: str) -> Answer:
        """Run ``hookscope COMMAND WORDS`` in this process."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([command, *shlex.split(words)])
        out, err = self._capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err, self.take_files())

    def take_files(self) -> Files:
        """The new files, which are removed."""
        new = {n: data for n, data in files_in(self.folder).items() if n not in self._kept}
        for name in new:
            (self.folder / name).unlink()
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        return new


@pytest.fixture
def workplace(
    kept_sources: Path,
    clean_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Workplace]:
    monkeypatch.chdir(kept_sources)
    for key in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(key, clean_environment[key])
    monkeypatch.setattr(run_context, "_import_torch", lambda: None)  # it freezes what is collected
    place = Workplace(kept_sources, capsys)
    yield place
    place.take_files()
