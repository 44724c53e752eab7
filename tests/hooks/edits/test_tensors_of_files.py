"""Tensors of files are added, put in place and projected out as hooks written by hand do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hookscope
from hookscope.errors import EditError
from hookscope.specs.edit import TensorSource, parse_edits

X = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
V = torch.randn(8, generator=torch.Generator().manual_seed(4))


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval()


def by_hand(change: Callable[[Tensor], Tensor], layer: str = "0", given: Tensor = X) -> Tensor:
    """The output of the model whose layer returns what ``change`` makes of its output."""
    model = net()
    hook: Any = lambda module, args, output: change(output)  # noqa: E731
    model.get_submodule(layer).register_forward_hook(hook)
    with torch.no_grad():
        output: Tensor = model(given)
    return output


@pytest.fixture
def steer(tmp_path: Path) -> Path:
    """A file of safetensors with a vector, and tensors of other shapes."""
    file = tmp_path / "steer.safetensors"
    tensors = {"v": V, "rows": torch.randn(2, 1, 8), "places": torch.randn(5, 8), "v:4": 2 * V}
    tensors |= {"all": torch.randn(2, 5, 8), "bad": torch.ones(7), "zero": torch.zeros(8)}
    tensors["ids"] = torch.ones(8).long()
    save_file(tensors, file)
    return file


def stored(file: Path, key: str) -> Tensor:
    from safetensors.torch import load_file

    return load_file(file)[key]


@pytest.mark.parametrize("key", ["v", "rows", "places", "all"])
def test_tensors_are_broadcast_as_by_hand(steer: Path, key: str) -> None:
    t = stored(steer, key)
    added = hookscope.capture(net(), input=X, edits=f"0=add:{steer}#{key}")
    assert torch.equal(added.output, by_hand(lambda x: x + t))
    put = hookscope.capture(net(), input=X, edits=f"0=patch:{steer}#{key}")
    assert torch.equal(put.output, by_hand(lambda x: t.expand_as(x).contiguous()))


@pytest.mark.parametrize("scale", ["4", "-0.5", "1e-3"])
def test_a_factor_follows_the_key(steer: Path, scale: str) -> None:
    shot = hookscope.capture(net(), input=X, edits=f"0=add:{steer}#rows:{scale}")
    t = stored(steer, "rows")
    assert torch.equal(shot.output, by_hand(lambda x: x + float(scale) * t))


def test_a_key_may_end_like_a_factor(steer: Path) -> None:
    shot = hookscope.capture(net(), input=X, edits=f"0=add:{steer}#v:4")
    assert torch.equal(shot.output, by_hand(lambda x: x + stored(steer, "v:4")))


def test_an_array_of_numpy_has_no_key(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", V.double().numpy())
    for text, factor in ((f"{tmp_path}/v.npy", 1), (f"{tmp_path}/v.npy:3", 3)):
        shot = hookscope.capture(net(), input=X, edits=f"0=add:{text}")
        assert torch.equal(shot.output, by_hand(lambda x, f=factor: x + f * V))


def test_a_direction_is_projected_out(steer: Path) -> None:
    shot = hookscope.capture(net(), input=X, layers="0", edits=f"0=project:{steer}#v")

    def change(x: Tensor) -> Tensor:
        v = V.expand_as(x)
        length = (v * v).sum(-1, keepdim=True)
        return x - v * ((x * v).sum(-1, keepdim=True) / length)

    assert torch.equal(shot.output, by_hand(change))
    unit = (V / V.norm()).double()
    before = shot["0/output.unedited"].double()
    expected = before - torch.einsum("nlc,c,d->nld", before, unit, unit)
    assert torch.allclose(shot["0/output"].double(), expected, atol=1e-6)
    assert float((shot["0/output"].double() @ unit).abs().max()) < 1e-6


def test_a_vector_of_channels_is_broadcast_over_an_image(tmp_path: Path) -> None:
    v = torch.randn(4)
    np.save(tmp_path / "v.npy", v.numpy())
    image = torch.randn(2, 3, 4, 4)  # as wide as there are channels
    conv = nn.Conv2d(3, 4, 1)
    shot = hookscope.capture(conv, input=image, layers=".", edits=f".=add:{tmp_path}/v.npy")
    with torch.no_grad():
        assert torch.equal(shot.output, conv(image) + v[:, None, None])


def test_positions_and_channels_take_their_part(steer: Path) -> None:
    t, v = stored(steer, "all"), stored(steer, "v")
    shot = hookscope.capture(net(), input=X, edits=f"0@1,-1=patch:{steer}#all")

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, [1, 4]] = t[:, [1, 4]]
        return x

    assert torch.equal(shot.output, by_hand(change))
    shot = hookscope.capture(net(), input=X, edits=f"0@-1[2,3]=add:{steer}#v:2")

    def add(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, -1, 2:4] += 2 * v[2:4]
        return x

    assert torch.equal(shot.output, by_hand(add))


def test_a_capture_of_some_positions_is_patched_back(tmp_path: Path) -> None:
    file = tmp_path / "clean.safetensors"
    clean = hookscope.capture(net(), input=X, layers="0@2")
    clean.save(file)
    shot = hookscope.capture(net(), input=X * 3, edits=f"0@2=patch:{file}")

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 2:3] = clean["0/output"]
        return x

    assert torch.equal(shot.output, by_hand(change, given=X * 3))


def test_a_features_folder_gives_the_mean_of_its_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    hookscope.extract(
        net(), f"{tmp_path}/features/", layers="0", input=torch.utils.data.TensorDataset(X)
    )
    key = next(iter(hookscope.load(f"{tmp_path}/features/")))
    shot = hookscope.capture(net(), input=X, edits=f"0=patch:{tmp_path}/features/#{key}")
    with torch.no_grad():
        rows = torch.from_numpy(np.asarray(hookscope.load(f"{tmp_path}/features/")[key][:]))
    mean = rows.double().mean(0).float()
    assert torch.allclose(shot.output, by_hand(lambda x: mean.expand_as(x).contiguous()), atol=1e-6)
    with pytest.raises(EditError, match="'0/outptu'"):
        hookscope.capture(net(), input=X, edits=f"0=add:{tmp_path}/features/#0/outptu")


@pytest.mark.parametrize(
    ("edit", "subject", "hint"),
    [
        ("0=add:{}#bad", "bad .*7 float32.*2x5x8 float32", "2x5x8 or 8"),
        ("0@-1=add:{}#bad", "bad .*2x1x8", "2x1x8 or 2x5x8 or 8"),
        ("0=patch:{}#bad", "bad .*7 float32.*2x5x8 float32", "2x5x8 or 8"),
        ("0=project:{}#zero", "zero", ""),
        ("0=add:{}#ids", "ids .*8 int64.*2x5x8 float32", "float32"),
        ("0=add:{}#zzzz", "'zzzz'", "It contains"),
        ("0=add:{}#plcaes", "'plcaes'", "places"),
        ("0=patch:{}", "'0/output'", ""),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(
    steer: Path, edit: str, subject: str, hint: str
) -> None:
    with pytest.raises(EditError, match=subject) as caught:
        hookscope.capture(net(), input=X, edits=edit.format(steer))
    assert hint in caught.value.hint


def test_a_foreign_file_is_a_source_of_edits(tmp_path: Path) -> None:
    save_file({"0/output": torch.ones(1)}, tmp_path / "f.safetensors")
    shot = hookscope.capture(net(), input=X, edits=f"0=patch:{tmp_path}/f.safetensors")
    assert torch.equal(shot["0/output"], torch.ones_like(shot["0/output"]))


def test_gradients_pass_through_an_added_vector(steer: Path) -> None:
    found = hookscope.grads(net(), input=X, loss="sum", edits=f"0=add:{steer}#v", layers="0")
    model = net()
    model[0].register_forward_hook(lambda module, args, output: output + V)  # type: ignore[index]
    model(X).sum().backward()
    assert torch.equal(found["0/weight.grad"], model.get_parameter("0.weight").grad)  # type: ignore[arg-type]


def test_sources_are_parsed(steer: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", V.numpy())
    texts = [f"add:{steer}#a:2/output:-2", f"patch:{steer}", f"project:{tmp_path}/v.npy"]
    sources = [edit.argument for edit in parse_edits([f"0={text}" for text in texts])]
    assert sources == [
        TensorSource(str(steer), "a:2/output", -2.0, "a:2/output:-2"),
        TensorSource(str(steer)),
        TensorSource(f"{tmp_path}/v.npy"),
    ]
    for wrong in ("add:no.safetensors#v", "patch:no.safetensors", f"add:{tmp_path}/v.npy#key"):
        with pytest.raises(EditError, match=r"no\.safetensors|v\.npy"):
            parse_edits(f"0={wrong}")
