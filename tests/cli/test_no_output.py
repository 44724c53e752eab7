"""``--no-output``: a recording command runs, prints its result and writes no file."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from hookscope.cli.output_file import writes_file

WITH_OUTPUT = ("capture", "grads", "step", "ablate", "sweep", "cam")


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("command", WITH_OUTPUT)
def test_nothing_is_written_and_the_result_is_the_same(
    run, repo: Path, tmp_path: Path, command
) -> None:
    samples = repo / "sample_models"
    words = (command, samples / "digits.py:trained", "--input", samples / "five.png")
    without = run(*words, "--no-output")
    assert without.rc == 0, without.stderr
    assert list((tmp_path / "work").iterdir()) == []
    assert "wrote" not in without.stderr
    with_file = run(*words)
    assert without.stdout == with_file.stdout
    assert "wrote" in with_file.stderr
    document = json.loads(run(*words, "--no-output", "--json").stdout)
    assert document["file"] is None


def test_an_existing_file_is_no_obstacle(parse) -> None:
    Path("resnet18.capture.safetensors").write_text("not ours")
    assert not writes_file(parse("capture", "--no-output"))


def test_of_output_and_no_output_the_stronger_source_counts(parse, monkeypatch) -> None:
    assert writes_file(parse("capture"))
    assert writes_file(parse("capture", "-o", "a.safetensors"))
    with pytest.raises(click.UsageError, match="--output and --no-output"):
        writes_file(parse("capture", "-o", "a.safetensors", "--no-output"))
    monkeypatch.setenv("HOOKSCOPE_CAPTURE_NO_OUTPUT", "1")
    assert not writes_file(parse("capture"))
    assert writes_file(parse("capture", "-o", "a.safetensors"))
    Path("hookscope.toml").write_text("[capture]\noutput = 'b.safetensors'\n")
    assert not writes_file(parse("capture"))
