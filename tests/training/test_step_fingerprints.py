"""``hookscope run --fingerprint``: sketches of steps, and the step and layer that differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope.file_analysis.run_diff import compare_runs
from hookscope.hooks.layers import layers_of
from hookscope.results.projections import project
from hookscope.specs.diff_request import RunDiffOptions
from hookscope.stores.fingerprint_file import open_fingerprint
from hookscope.stores.runs.step_fingerprints import fingerprint_path, step_fingerprints
from hookscope.training.output_sketches import OutputSketches
from tests.conftest import Run
from tests.stores.runs.conftest import LOSS, write_run

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
first = nn.Linear(8, 16), nn.ReLU(inplace=True)
net = nn.Sequential(*first, nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range({steps}):
    x = torch.randn(32, 8)
    {change}
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 3, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([weight.sum().item() for weight in net.parameters()])
"""
AT_STEP_3 = "if step == 3: "
CHANGES = {
    "no": "",
    "weight": AT_STEP_3 + "net[2].weight.data.mul_(1.01)",
    "gelu": AT_STEP_3 + "net[3].approximate = 'tanh'",
    "rounding": "x *= 1 + 2.0**-22",
}


def script(change: str, steps: int = 6) -> str:
    return SCRIPT.format(change=CHANGES[change] or "pass", steps=steps)


@pytest.fixture
def folders(watched: Callable, work: Path) -> dict[str, Path]:
    """A run of each change."""
    for name in CHANGES:
        ended = watched(script(name), "--fingerprint", "--every", "1", "-o", name)
        assert ended.status == 0, ended.stderr
    return {name: work / name for name in CHANGES}


@pytest.mark.slow
def test_the_first_step_and_layer_that_differ_are_named(folders: dict[str, Path], run: Run) -> None:
    for name, key in (("weight", "2/output"), ("gelu", "3/output")):
        found = compare_runs(folders["no"], folders[name], RunDiffOptions()).sketched
        assert found is not None and found.change is not None
        assert (found.step, found.model, found.change.key) == (3, "net", key)
    done = run("diff", folders["no"], folders["gelu"])
    assert done.rc == 1
    assert "3/output of net, at step 3" in " ".join(done.stdout.split())
    files = [folders[name] / "fingerprints" / "step-000000003-net.fp" for name in ("no", "gelu")]
    done = run("diff", *files, "--json")
    assert done.rc == 1
    rows = json.loads(done.stdout)["rows"]
    assert next(row["key"] for row in rows if row["verdict"] == "differs") == "3/output"
    assert run("diff", files[0], files[0]).rc == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_rounding_is_not_a_difference(folders: dict[str, Path]) -> None:
    found = compare_runs(folders["no"], folders["rounding"], RunDiffOptions())
    assert found.first is not None  # the numbers differ in their last bits
    assert found.sketched is not None and found.sketched.steps == 6
    assert found.sketched.step is None
    same = compare_runs(folders["no"], folders["rounding"], RunDiffOptions(rtol=0.1, atol=1.0))
    assert same.same
    other = compare_runs(folders["no"], folders["weight"], RunDiffOptions(rtol=1e9, atol=1e9))
    assert other.first is None and not other.same


@pytest.mark.slow
def test_the_training_is_the_same(both_ways: Callable, work: Path) -> None:
    both_ways(script("no"), "--fingerprint", "--every", "2", "-o", "run")
    assert list(step_fingerprints(work / "run")["net"]) == [0, 2, 4]
    fingerprint = open_fingerprint(work / "run" / "fingerprints" / "step-000000002-net.fp")
    assert [entry.key for entry in fingerprint.outputs] == [f"{n}/output" for n in range(5)] + [
        "./output"
    ]


def test_an_output_changed_in_place_is_sketched_as_it_was() -> None:
    """Each entry is that of a plain hook's copy, worked out with numpy."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True))
    sketches, copies = OutputSketches(), {}
    for layer in layers_of(net):

        def hook(module, args, output, layer=layer) -> None:
            sketches.add(layer, output)
            copies[f"{layer.name}/output"] = output.detach().clone().numpy().ravel()

        layer.module.register_forward_hook(hook)
    net(torch.randn(5, 4))
    found = sketches.fingerprint("net", 0, {})
    assert {entry.key for entry in found.entries} == set(copies)
    for entry in found.entries:
        values = copies[entry.key].astype(np.float64)
        np.testing.assert_allclose(entry.norm, np.linalg.norm(values), rtol=1e-5)
        np.testing.assert_allclose(entry.projections, project([copies[entry.key]]), atol=1e-6)
        assert entry.shape == (5, 6) and entry.rounding == pytest.approx(2.42e-6, rel=0.01)
    assert found["1/output"].min == 0 > found["0/output"].min


def test_no_more_than_eight_calls_of_a_layer_count() -> None:
    net, sketches = nn.Linear(2, 2), OutputSketches()
    [layer] = layers_of(net)
    for _ in range(20):
        sketches.add(layer, net(torch.randn(1, 2)))
    assert len(sketches.fingerprint("net", 0, {}).entries) == 8


def test_a_damaged_fingerprint_is_named(tmp_path: Path) -> None:
    net, sketches = nn.Linear(2, 2), OutputSketches()
    sketches.add(layers_of(net)[0], net(torch.randn(1, 2)))
    a, b = (write_run(tmp_path / name, [(0, {LOSS: 1.0})]) for name in "ab")
    for folder in (a, b):
        fingerprint_path(folder, "net", 0).parent.mkdir()
        sketches.fingerprint("net", 0, {}).save(fingerprint_path(folder, "net", 0))
    assert compare_runs(a, b, RunDiffOptions()).same
    path = step_fingerprints(b)["net"][0]
    path.write_text(path.read_text()[:-200])
    with pytest.raises(hookscope.HookscopeError, match=r"step-000000000-net\.fp is damaged"):
        compare_runs(a, b, RunDiffOptions())
