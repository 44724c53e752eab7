"""Which layers a sweep edits if none are chosen."""

from __future__ import annotations

from pathlib import Path

import hookscope


def test_positions_are_those_of_the_residual_stream(repo: Path) -> None:
    folder = f"hf:{repo / 'sample_models' / 'capitals'}"
    text = "text:the capital of Italy is"
    found = hookscope.sweep(folder, edit="zero", input=text, positions="all")
    assert found.layers == tuple(f"model.layers.{n}" for n in range(4))
    named = hookscope.sweep(
        folder, edit="zero", input=text, positions="all", layers="model.layers.?"
    )
    assert found.cells == named.cells
    whole = hookscope.sweep(folder, edit="zero", input=text)
    assert "model.layers.0" not in whole.layers and len(whole.layers) > 4  # leaves
