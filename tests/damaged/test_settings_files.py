"""Damaged settings files: a sentence and exit status 2, with or without ``--config``."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from hookscope.cli.console import Console
from hookscope.cli.main import cli
from hookscope.errors import RequestError, SettingsError
from tests.damage import damaged, endure

WHOLE = b"""device = "cpu"
seed = 3

[capture]
layer = ["layer3.*", "fc"]
depth = 2
verify = true
shape = "1x3x64x64"

[grads]
loss = "ce"
"""


def settings_endure(path: Path, whole: bytes, words: list[str], rounds: int, seed: int) -> None:
    def read() -> None:
        try:
            with cli.make_context("hookscope", ["config", *words], obj=Console()) as context:
                cli.invoke(context)
        except click.ClickException as error:
            assert error.exit_code == 2
            raise RequestError(" ".join(error.format_message().split())) from error
        except click.exceptions.Exit as end:
            assert end.exit_code == 0

    assert endure(path, [whole], read) == 0
    assert endure(path, damaged(whole, rounds, seed), read)


@pytest.mark.parametrize(
    ("name", "named"),
    [("hookscope.toml", False), ("pyproject.toml", False), ("other.toml", True)],
)
@pytest.mark.parametrize(
    ("rounds", "seed"), [(60, 0), pytest.param(3000, 1, marks=pytest.mark.exhaustive)]
)
def test_damaged_settings_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, named: bool, rounds: int, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = WHOLE
    if name == "pyproject.toml":
        whole = b"[tool.hookscope]\n" + WHOLE.replace(b"[capture]", b"[tool.hookscope.capture]")
        whole = whole.replace(b"[grads]", b"[tool.hookscope.grads]")
    words = ["--config", name] if named else []
    settings_endure(tmp_path / name, whole, words, rounds, seed)


def test_a_value_nested_too_deeply_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hookscope.toml"
    path.write_bytes(b"layer = " + b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(SettingsError, match="not valid TOML"):
        cli.invoke(cli.make_context("hookscope", ["config"], obj=Console()))
