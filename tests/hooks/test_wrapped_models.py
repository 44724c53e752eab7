"""Wrapped and changed modules, against hooks by hand on the plain model or straight computation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import accelerate
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.ao import quantization
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import hookscope
from hookscope.errors import ForwardError, RequestError
from hookscope.execution.verification import bit_identical
from tests.hooks.recordings import reasons, recorded
from tests.zoo import Module
from tests.zoo import quantized as dynamically_quantized

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Sequential(nn.Flatten(), nn.Linear(144, 5)),
        ).eval()


def by_hand(model: nn.Module, x: Tensor = X) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs of every module and gradients of every parameter, for the sum of the output."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda _, __, out: outputs.update({name or ".": out.detach().clone()})

    handles = [m.register_forward_hook(keep(name)) for name, m in model.named_modules()]
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return outputs, {name: p.grad for name, p in model.named_parameters()}


def demand_like_plain(capture: hookscope.Capture, plain: nn.Module) -> None:
    outputs, grads = by_hand(plain)
    assert {key for key in capture if key.endswith("/output")} == {f"{n}/output" for n in outputs}
    for name, tensor in outputs.items():
        assert bit_identical(capture[f"{name}/output"], tensor)
    found = {r.key: capture[r.key] for r in capture.records if r.kind == "param.grad"}
    expected = {f"{'/'.join(n.rsplit('.', 1))}.grad": g for n, g in grads.items()}
    assert found.keys() == expected.keys()
    assert all(bit_identical(found[key], grad) for key, grad in expected.items())


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def compiled_before(model: nn.Module) -> nn.Module:
    wrapped = torch.compile(model, backend="eager")
    with torch.no_grad():
        wrapped(X)  # hooks that are added now would never fire in what it made
    return wrapped


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "compile, run before": compiled_before,
    "compile in place": lambda model: (model.compile(backend="eager"), model)[1],
    "compile of a part": lambda model: nn.Sequential(
        *model[:3], torch.compile(model[3], backend="eager")
    ).eval(),
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": nn.parallel.DistributedDataParallel,
    "DataParallel of compile": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    "checkpoint_wrapper": checkpoint_wrapper,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_is_recorded_under_the_names_of_the_plain_one(
    group: None, wrapper: str
) -> None:
    wrapped = WRAPPERS[wrapper](net())
    capture = recorded(wrapped, X, grads=True)
    demand_like_plain(capture, net())
    assert capture.coverage.not_executed == ()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_verbs_take_a_wrapped_model(group: None, wrapper: str) -> None:
    wrapped = WRAPPERS[wrapper](net())
    with torch.no_grad():
        before = wrapped(X)
    capture = hookscope.capture(wrapped, input=X, verify=True)
    outputs, _ = by_hand(net())
    assert list(capture) == [f"{name}/output" for name in outputs]
    assert all(bit_identical(capture[f"{name}/output"], outputs[name]) for name in outputs)
    assert capture.metadata["model"]["spec"] == "Sequential"
    assert "3.1/weight.grad" in hookscope.grads(wrapped, input=X, loss="sum")
    names = [node.name for node in hookscope.tree(wrapped).modules]
    assert names == [".", "0", "1", "2", "3", "3.0", "3.1"]
    assert "3.1/weight.update" in hookscope.step(wrapped, input=X, loss="sum")
    with torch.no_grad():
        assert bit_identical(wrapped(X), before)


def test_a_compiled_model_of_a_file_is_captured_and_a_failure_names_the_plain_layer(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\ndef make():\n"
        "    return torch.compile(nn.Sequential(nn.Linear(3, 2)), backend='eager')\n"
    )
    word = f"{tmp_path}/net.py:make"
    assert list(hookscope.capture(word, shape=(1, 3), layers="0", verify=True)) == ["0/output"]
    with pytest.raises(ForwardError, match=r"3\.1 \(Linear\)"):
        hookscope.capture(nn.DataParallel(net()), input=torch.ones(1, 3, 9, 9))


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "weight norm": lambda model: parametrizations.weight_norm(model[0]),
    "orthogonal": lambda model: parametrizations.orthogonal(model[3][1]),
    "old weight norm": lambda model: nn.utils.weight_norm(model[0]),
    "old spectral norm": lambda model: nn.utils.spectral_norm(model[0]),
    "pruned": lambda model: prune.l1_unstructured(model[0], "weight", 0.5),
}


def changed(change: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        CHANGES[change](model := net())
    return model


@pytest.mark.parametrize("change", CHANGES)
def test_parametrized_normed_and_pruned_modules_give_their_values_and_gradients(
    change: str,
) -> None:
    demand_like_plain(recorded(changed(change), X, grads=True), changed(change))
    capture = hookscope.capture(changed(change), input=X, verify=True)
    assert bit_identical(capture["./output"], changed(change)(X).detach())


@pytest.mark.parametrize("kind", ["Conv2d", "ParametrizedConv2d", "Conv*"])
def test_a_parametrized_module_is_found_by_both_names_of_its_class(kind: str) -> None:
    capture = hookscope.capture(changed("weight norm"), input=X, types=[kind])
    assert list(capture) == ["0/output"]
    assert capture.records[0].type == "ParametrizedConv2d"


@pytest.mark.parametrize("change", ["old weight norm", "pruned"])
def test_a_module_that_cannot_be_copied_is_not_moved(change: str) -> None:
    with pytest.raises(RequestError, match="copied") as caught:
        hookscope.capture(changed(change), input=X, dtype="float64")
    assert "model.to(" in caught.value.hint


def quantized() -> nn.Module:
    torch.backends.quantized.engine = "fbgemm"
    model = Module(
        lambda self, x: self.dequant(self.net(self.quant(x))),
        quant=quantization.QuantStub(),
        net=net(),
        dequant=quantization.DeQuantStub(),
    ).eval()
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.prepare(model, inplace=True)
        model(X)
        return quantization.convert(model, inplace=True)


needs_fbgemm = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="no engine to quantize with"
)


@needs_fbgemm
def test_quantized_values_are_kept_and_stored_dequantized(tmp_path: Path) -> None:
    model = quantized()
    seen: dict[str, Tensor] = {}
    handle = model.net[0].register_forward_hook(lambda _, __, out: seen.update(out=out.clone()))
    output = model(X)
    handle.remove()
    capture = hookscope.capture(model, input=X, verify=True)
    record = next(r for r in capture.records if r.key == "net.0/output")
    assert (record.dtype, record.type) == ("quint8", "Conv2d")
    assert torch.equal(capture["net.0/output"].int_repr(), seen["out"].int_repr())
    assert bit_identical(capture["./output"], output)
    assert record.stats.mean == pytest.approx(float(seen["out"].dequantize().mean()))
    capture.save(tmp_path / "c.safetensors")
    again = hookscope.load(tmp_path / "c.safetensors")
    assert bit_identical(again["net.0/output"], seen["out"].dequantize())


@needs_fbgemm
def test_dynamically_quantized_layers_are_recorded() -> None:
    torch.backends.quantized.engine = "fbgemm"
    model, x = dynamically_quantized(), torch.randn(2, 4)
    capture = hookscope.capture(model, input=x, types=["Linear"])
    assert bit_identical(capture["0/output"], model[0](x))


@pytest.mark.parametrize("verb", ["capture", "grads", "check", "trace", "ablate", "fingerprint"])
def test_a_model_on_the_meta_device_is_refused(verb: str) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).to("meta")
    with pytest.raises(RequestError, match="meta"):
        getattr(hookscope, verb)(model, input=torch.ones(2, 5))


def test_a_layer_on_the_meta_device_is_named_where_the_model_fails() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2, device="meta"))
    with pytest.raises(ForwardError, match=r"1 \(Linear\)[\s\S]*on meta"):
        hookscope.capture(model, input=torch.ones(2, 5))
    with pytest.raises(RequestError, match="meta"):
        hookscope.capture(model, input=torch.ones(2, 5), dtype="float64")


def test_a_lazy_module_is_refused_by_the_verbs_and_recorded_as_it_gets_its_shape() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(RequestError, match=r"0 \(LazyLinear\)"):
        hookscope.capture(lazy, input=torch.ones(2, 5))
    with hookscope.record(lazy) as capture:
        output = lazy(torch.ones(2, 5))
    assert bit_identical(capture["0/output"], output.detach())
    assert isinstance(lazy[0].weight, nn.Parameter)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_values_are_recorded_once(reentrant: bool, sequential: bool) -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        if sequential:
            return checkpoint_sequential(self.net, 2, x, use_reentrant=reentrant)
        return checkpoint(self.net, x, use_reentrant=reentrant)

    capture = recorded(Module(run, net=net()), X.clone().requires_grad_(), grads=True)
    outputs, grads = by_hand(net())
    kept = {r.key for r in capture.records if r.kind == "output"}
    leaves = {n for n in outputs if n not in (".", "3")} if sequential else set(outputs)
    names = {f"net.{n}" if n != "." else "net" for n in leaves}
    assert {f"{name}/output" for name in names} <= kept
    assert all(r.call == 1 for r in capture.records)
    for name in leaves:
        key = f"net.{name}/output" if name != "." else "net/output"
        assert bit_identical(capture[key], outputs[name])
    assert bit_identical(capture["net.0/weight.grad"], grads["0.weight"])
    inner = {r.key for r in capture.records if r.kind == "output.grad"}
    assert ("net.1/output.grad" in inner) != reentrant
    told = [a for a in capture.absent if a.module == "net.0" and a.kind == "output.grad"]
    assert len(told) == reentrant and all("without autograd" in a.reason for a in told)


PLACES = {"0": "cpu", "1": "cpu", "2": "cpu", "3": "disk"}
CPU = torch.device("cpu")
DISPATCHED: dict[str, Callable[[Path], nn.Module]] = {
    "offloaded": lambda folder: accelerate.cpu_offload(net(), execution_device=CPU),
    "on disk": lambda folder: accelerate.disk_offload(net(), str(folder), execution_device=CPU),
    "split": lambda folder: accelerate.dispatch_model(
        net(), PLACES, main_device="cpu", offload_dir=str(folder)
    ),
}


@pytest.mark.parametrize("way", DISPATCHED)
def test_a_model_whose_weights_come_and_go_gives_the_same_values(tmp_path: Path, way: str) -> None:
    model = DISPATCHED[way](tmp_path)
    where = [p.device.type for p in model.parameters()]
    assert "meta" in where
    outputs, _ = by_hand(net())
    for capture in (recorded(model, X), hookscope.capture(model, input=X, verify=True)):
        assert list(capture) == [f"{name}/output" for name in outputs]
        assert all(bit_identical(capture[f"{name}/output"], outputs[name]) for name in outputs)
        assert {r.device for r in capture.records} == {"cpu"}
    assert [p.device.type for p in model.parameters()] == where


def test_gradients_of_offloaded_weights_are_told_as_absent(tmp_path: Path) -> None:
    capture = hookscope.grads(DISPATCHED["split"](tmp_path), input=X, loss="sum")
    plain = hookscope.grads(net(), input=X, loss="sum")
    assert "offloaded" in reasons(capture)["3.1/weight.grad"]
    kept = [key for key in plain if not key.startswith("3.1/") or "output" in key]
    assert list(capture) == kept
    assert all(bit_identical(capture[key], plain[key]) for key in kept)


@pytest.mark.parametrize("given", [{"device": "cpu"}, {"dtype": "float64"}])
def test_a_dispatched_model_is_not_moved(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="accelerate"):
        hookscope.capture(DISPATCHED["split"](tmp_path), input=X, **given)
