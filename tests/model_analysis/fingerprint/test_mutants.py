"""Small changes of models: whether the fingerprint finds them, and names the right layer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from hookscope.file_analysis.fingerprint_diff import compare_fingerprints
from hookscope.model_analysis.golden import GoldenModel
from hookscope.results.fingerprint_diff import FingerprintDiff
from hookscope.specs.tolerances import ExactDiffOptions
from tests.model_analysis.fingerprint.nets import NETS, build, mutants


@pytest.fixture
def changes(tmp_path):
    """The comparison of a model with the file of another one."""

    def compare(known: nn.Module, model: nn.Module, batch: Any) -> FingerprintDiff:
        path = tmp_path / "net.fp"
        if not path.exists():
            GoldenModel(known, batch, "test").write(path)
        return GoldenModel(model, batch, "test").compare(path)

    return compare


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_a_small_change_is_found_at_its_layer(changes, name: str) -> None:
    model, batch = build(name)
    assert changes(model, model, batch).equal == len(changes(model, model, batch).rows)
    for mutant in mutants(name)[::3]:
        found = changes(model, mutant.model, batch)
        assert found.first is not None, mutant.label
        assert found.first.key == mutant.place, mutant.label


def changes_nothing(model: nn.Module, other: nn.Module, batch: torch.Tensor) -> bool:
    """Whether the outputs differ by less than float32 can represent, as a run in float64 shows."""
    exact = batch.double() if batch.is_floating_point() else batch
    with torch.no_grad():
        a, b = (copy.deepcopy(each).double()(exact) for each in (model, other))
    return bool((a - b).norm() < torch.finfo(torch.float32).eps / 2 * a.norm())


@pytest.mark.exhaustive
def test_99_of_100_changes_are_found_and_95_at_the_right_layer(tmp_path) -> None:
    lost, misplaced, count = [], [], 0
    for name in NETS:
        model, batch = build(name)
        path = tmp_path / f"{name}.fp"
        GoldenModel(model, batch, "test").write(path)
        for mutant in mutants(name):
            if changes_nothing(model, mutant.model, batch):
                continue  # such as a weight of a channel that is always zero
            found = GoldenModel(mutant.model, batch, "test").compare(path)
            count += 1
            if found.first is None:
                lost.append(mutant.label)
            elif found.first.key != mutant.place:
                misplaced.append((mutant.label, found.first.key, found.first.times))
    assert count >= 100
    assert len(lost) <= count // 100, lost
    assert len(lost) + len(misplaced) <= count // 20, (lost, misplaced)


@pytest.mark.parametrize("name", NETS)
def test_threads_kernels_and_memory_formats_are_no_alarm(changes, name: str) -> None:
    model, batch = build(name)
    changes(model, model, batch)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            assert changes(model, model, batch).same
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            assert changes(model, model, batch).same
    finally:
        torch.set_num_threads(threads)
    if batch.ndim == 4:
        batch = batch.contiguous(memory_format=torch.channels_last)
        model.to(memory_format=torch.channels_last)
        assert changes(model, model, batch).same


def rounded_once(model: nn.Module) -> nn.Module:
    """Return a copy whose layers compute in float64 and round their output to float32.

    The bits differ from those of a float32 kernel on every processor.
    """
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d | nn.RNNBase):
            layer.forward = partial(_in_float64, copy.deepcopy(layer).double())  # type: ignore[method-assign]
    return model


def _in_float64(exact: nn.Module, x: torch.Tensor) -> Any:
    return tree_map(torch.Tensor.float, exact(x.double()))


@pytest.mark.parametrize("name", NETS)
def test_other_rounding_is_no_alarm(changes, name: str) -> None:
    model, batch = build(name)
    found = changes(model, rounded_once(model), batch)
    assert found.same, found
    assert found.equal < len(found.rows)  # other bits


def test_two_files_are_compared_as_the_models_are(tmp_path) -> None:
    model, batch = build("residual")
    [mutant] = [one for one in mutants("residual") if one.label == "residual: factor of 3"]
    golden, changed = GoldenModel(model, batch, "t"), GoldenModel(mutant.model, batch, "t")
    golden.write(tmp_path / "a.fp")
    found = changed.compare(tmp_path / "a.fp")
    found.b.save(tmp_path / "b.fp")
    from hookscope.stores.fingerprint_file import open_fingerprint

    files = [open_fingerprint(tmp_path / f"{name}.fp") for name in "ab"]
    assert files[1].to_text() == found.b.to_text()
    again = compare_fingerprints(files[0], files[1], ExactDiffOptions())
    assert again.rows == found.rows
    assert again.first.key == "3.relu:2/input.0"
    assert again.first.origin == "3"


def test_dropout_that_is_on_in_both_is_the_same_and_its_rounding_is_not_hidden(changes) -> None:
    model, batch = build("dense")
    model[3].train()
    assert changes(model, model, batch).same
    model[0].weight.data[0, 0] *= 1.01
    assert changes(model, model, batch).first.key == "0/output"
