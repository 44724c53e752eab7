"""Type checkers know the keywords and the results of the public functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_python

USED = """
import torch

import hookscope

with hookscope.record(torch.nn.Linear(2, 2)) as recording:
    reveal_type(recording)
reveal_type(hookscope.capture("resnet18", layers="fc", shape=(1, 3, 64, 64))["fc/output"])
reveal_type(hookscope.lens("hf:folder", input="text:a").cells[0].rank)
reveal_type(hookscope.tree("resnet18", hash=True))
hookscope.capture("resnet18", layer="fc")
hookscope.grads(seed="3")
hookscope.lens()
"""
SAID = (
    (7, 'note: Revealed type is "hookscope.hooks.capture.Capture"'),
    (8, 'note: Revealed type is "torch._tensor.Tensor"'),
    (9, 'note: Revealed type is "int'),
    (10, 'note: Revealed type is "hookscope.stores.weights.weight_tree.WeightHashes"'),
    (11, 'error: Unexpected keyword argument "layer" for "capture"'),
    (12, 'error: Argument "seed" to "grads" has incompatible type "str"; expected "int"'),
    (13, 'error: Missing positional argument "model" in call to "lens"'),
)


@pytest.mark.exhaustive
def test_a_type_checker_sees_keywords_and_results(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "used.py").write_text(USED, encoding="utf-8")
    command = ("-m", "mypy", "--config-file=", "--cache-dir", tmp_path / "c")
    options = ("--follow-imports=silent", "--ignore-missing-imports")
    done = run_python(*command, *options, tmp_path / "used.py", cwd=repo)
    lines = [
        line.partition("used.py:")[2] for line in done.stdout.splitlines() if "used.py" in line
    ]
    for line, text in SAID:
        assert any(one.startswith(f"{line}: {text}") for one in lines), (line, text, done.stdout)
