"""What the command line's tests share: parsing in this process, away from anybody's settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest

from hookscope.cli.commands import Command
from hookscope.cli.console import Console
from hookscope.cli.main import cli

Parse = Callable[..., click.Context]


@pytest.fixture
def parse(
    tmp_path: Path, clean_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Parse:
    """Parse ``hookscope BEFORE... COMMAND ARGS...`` in an empty folder and return the context."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in set(os.environ) - set(clean_environment):
        monkeypatch.delenv(name)
    for name, value in clean_environment.items():
        monkeypatch.setenv(name, value)

    def make(name: str, *arguments: str, before: Sequence[str] = ()) -> click.Context:
        root = cli.make_context("hookscope", [*before, name], obj=Console())
        return command(name).make_context(name, list(arguments), parent=root)

    return make


def command(name: str) -> Command:
    """Return the command called ``name``."""
    found = cli.commands[name]
    assert isinstance(found, Command)
    return found
