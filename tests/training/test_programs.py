"""Programs that are not changed end as under ``python``, and their models are found and recorded.

The oracle of the values is ``hooked_by_hand``: the same program with PyTorch's own hooks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tools.warm_process import Finished, WarmProcess

PROGRAMS = Path(__file__).with_name("programs")
BY_HAND = Path(__file__).with_name("hooked_by_hand.py")


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test where an optional package is missing."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")


# Each program with its arguments, and its models with parameters in the order of their calls.
CASES = [
    ("library 3", "network model detector"),
    ("parts", "text_encoder unet vae visual textual encoder decoder siamese net_g"),
    ("workers", "model large small"),
    pytest.param("speech_pipeline", "model", marks=needs("transformers")),
    pytest.param("generate", "llm", marks=needs("transformers")),
    ("rollout", "policy value"),
    ("worker_process", "here"),
    ("scripted", "loaded"),
    ("compiled aot_eager", "features head"),
]
pytestmark = pytest.mark.slow


@pytest.fixture
def run(warm_process: WarmProcess, bare_environment, tmp_path: Path) -> Callable[..., Finished]:
    """Run a command of hookscope in the folder of the test, or a script."""

    def start(*words: str | Path, script: Path | None = None, compiled: bool = True) -> Finished:
        environment = {**bare_environment, "TORCHDYNAMO_DISABLE": str(int(not compiled))}
        return warm_process.run([*map(str, words)], tmp_path, environment, script=script)

    return start


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return one.equal(other)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("words", "names"), CASES)
def test_a_program_ends_as_without_hookscope_and_its_models_have_its_names(
    run: Callable[..., Finished], words: str, names: str, tmp_path: Path
) -> None:
    program, *arguments = words.split()
    script = PROGRAMS / f"{program}.py"
    bare = run(*arguments, script=script)
    assert bare.rc == 0, bare.stderr
    ours = run("run", "--list", "-o", "list.json", script, *arguments)
    assert (ours.stdout, ours.rc) == (bare.stdout, 0), ours.stderr
    listed = json.loads((tmp_path / "list.json").read_text())
    found = [model["name"] for model in listed["models"] if model["parameters"]]
    if program == "workers":  # either thread may be first
        found[1:] = sorted(found[1:])
    assert found == names.split()
    if program == "worker_process":
        assert [one["what"] for one in listed["unseen"]] == ["work() in another process"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("words", "names"), CASES)
def test_values_are_those_of_hand_written_hooks(
    run: Callable[..., Finished], words: str, names: str, tmp_path: Path
) -> None:
    program, *arguments = words.split()
    script = PROGRAMS / f"{program}.py"
    # Compiled code calls no hooks, and is not compiled with those of the whole process.
    by_hand = run(tmp_path / "by_hand.pt", script, *arguments, script=BY_HAND, compiled=False)
    assert by_hand.rc == 0, by_hand.stderr
    ours = run("run", "--capture", "-o", "ours.safetensors", script, *arguments)
    assert (ours.stdout, ours.rc) == (by_hand.stdout, 0), ours.stderr
    recorded = load_file(tmp_path / "ours.safetensors")
    # The hooks by hand do not look into caches of transformers.
    recorded = {key: value for key, value in recorded.items() if ".cache." not in key}
    models = [model for model in torch.load(tmp_path / "by_hand.pt") if model[1]]
    if program == "workers":
        models[1:] = sorted(models[1:], key=lambda model: -model[1])
    expected = {
        name + key: tensor
        for name, (_, _, tensors) in zip(names.split(), models, strict=True)
        for key, tensor in tensors.items()
    }
    if program == "compiled":
        expected = {key: value for key, value in expected.items() if "features." not in key}
    assert recorded.keys() == expected.keys()
    for key, tensor in expected.items():
        assert recorded[key].dtype == tensor.dtype
        assert same_bits(recorded[key], tensor), key
