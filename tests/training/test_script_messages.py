"""What is said while a script runs."""

from __future__ import annotations

import pytest

from hookscope.training.script_messages import reported


def test_a_fault_is_reported_once_and_the_script_continues(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        with reported("a thing is not listed"):
            raise ValueError("no\nsuch thing.")
    assert capsys.readouterr().err == (
        "hookscope: a thing is not listed. ValueError: no such thing. The script continues.\n"
    )


def test_an_interrupt_ends_the_script() -> None:
    with pytest.raises(KeyboardInterrupt), reported("another thing is not listed"):
        raise KeyboardInterrupt
