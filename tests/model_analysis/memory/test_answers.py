"""The largest batch, the layers to checkpoint, and outputs that are made from earlier ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import hookscope
from hookscope.errors import ForwardError, RequestError
from hookscope.files.words import bytes_text
from hookscope.model_analysis.memory import output_cache
from hookscope.model_analysis.memory.batch_search import largest_batch
from hookscope.model_analysis.memory.output_cache import OutputCache
from hookscope.views.memory import memory_lines
from hookscope.views.text.text_table import TextOptions
from tests.conftest import REPO
from tests.model_analysis.memory.test_profiled_peaks import (
    PlainStep,
    images,
    llama,
    resnet,
    tokens,
    unet,
    vit,
)
from tests.zoo import Module

SAMPLES = REPO / "sample_models"


def blocks() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    parts = (nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4))
    return Module(forward, blocks=nn.ModuleList(parts))


def sums() -> Module:
    """A table whose gradient is sparse."""
    table = nn.Embedding(4000, 32, sparse=True)
    return Module(lambda self, x: self.table(x).sum(1), table=table)


def memory(batch: int, **options: Any) -> Any:
    return hookscope.memory(blocks(), input=torch.randn(batch, 32), optimizer="sgd", **options)


def said(found: Any) -> str:
    return "\n".join(line.plain for line in memory_lines(found, TextOptions()))


def test_one_sample_more_than_the_largest_batch_is_beyond_the_limit() -> None:
    found = memory(8, limit=10**6).limit
    assert found is not None
    assert found.peak == memory(found.batch).peak <= 10**6
    assert found.next_peak == memory(found.batch + 1).peak > 10**6


def test_the_largest_batch_is_found_where_the_peak_is_not_linear() -> None:
    def peak(batch: int) -> int:
        return max(1000 + batch, 10 * batch, batch * batch // 4)

    for limit in (1001, 1500, 2001, 10_000, 123_456):
        found = largest_batch(peak, 32, peak(32), limit)
        assert peak(found.batch) <= limit < peak(found.batch + 1)


def test_no_batch_is_an_answer() -> None:
    assert largest_batch(lambda batch: 1000 + batch, 4, 1004, 1000).batch == 0


def normalized() -> nn.Module:
    """A model that does not run with one sample."""
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 10))


def test_the_smallest_batch_that_runs_is_named_where_none_fits() -> None:
    options = {"input": torch.randn(16, 32), "optimizer": "sgd"}
    fixed = hookscope.memory(normalized(), **options).parts
    limit = 2 * fixed.parameters + fixed.buffers + 700
    found = hookscope.memory(normalized(), limit=limit, **options)
    two = hookscope.memory(normalized(), input=torch.randn(2, 32), optimizer="sgd").peak
    assert found.limit is not None
    assert (found.limit.batch, found.limit.next_batch, found.limit.next_peak) == (0, 2, two)
    assert f"{bytes_text(limit)}: 2 needs {bytes_text(two)}" in said(found)


def test_a_batch_just_beyond_the_limit_is_told_in_bytes() -> None:
    options = {"input": torch.randn(16, 32), "optimizer": "sgd"}
    known = hookscope.memory(normalized(), **options).peak
    found = hookscope.memory(normalized(), limit=known - 1, **options)
    assert f"15 ({bytes_text(found.limit.peak)}); 16 needs {known:,} bytes" in said(found)


@pytest.fixture
def torch_log() -> Iterator[list[logging.LogRecord]]:
    """What PyTorch logs, such as the traceback of an operator that fails without values."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)
    assert not log.disabled


def test_a_model_with_the_number_of_samples_in_its_code_has_no_largest_batch(torch_log) -> None:
    of_sixteen = Module(lambda self, x: x + torch.zeros(16, 1))
    with pytest.raises(RequestError, match=r"16 .* 32"):
        hookscope.memory(of_sixteen, input=torch.randn(16, 8), limit=10**6)
    assert torch_log == []


def test_a_file_that_loads_weights_is_built_without_a_log_line(torch_log) -> None:
    found = hookscope.memory(f"{SAMPLES}/digits.py:trained", shape=(8, 1, 8, 8))
    assert found.parts.parameters == 4 * 9930
    assert torch_log == []


def test_a_text_is_read_by_the_tokenizer_of_the_model() -> None:
    spec = f"hf:{SAMPLES}/capitals"
    of_text = hookscope.memory(spec, input=["text:the capital of France is"] * 2)
    values = {"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(2, 5).long()}
    assert of_text.peak == hookscope.memory(spec, input=values).peak
    assert of_text.batch == 2


def test_sparse_gradients_have_a_peak() -> None:
    value = torch.randint(0, 4000, (64, 8))
    found = hookscope.memory(sums(), input=value, optimizer="sgd")
    assert abs(found.peak / PlainStep(sums(), value, "SGD").peak() - 1) < 0.03


@pytest.mark.parametrize(
    ("make", "optimizer", "opt_args", "subject"),
    [
        (sums, "adam", {}, "Adam .* sparse"),
        (sums, "adagrad", {}, "Adagrad .* sparse"),
        (sums, "sgd", {"momentum": 0.9}, "SGD .* sparse"),
        (lambda: nn.Embedding(4000, 32), "adam", {"capturable": True}, "capturable=True"),
    ],
)
def test_a_step_that_cannot_be_taken_is_explained(make, optimizer, opt_args, subject) -> None:
    value = torch.randint(0, 4000, (64, 8))
    with pytest.raises(RequestError, match=subject):
        hookscope.memory(make(), input=value, optimizer=optimizer, opt_args=opt_args, loss="sum")


def test_the_checkpoints_that_fit_a_batch_are_those_that_a_program_would_need() -> None:
    plain = memory(512)
    limit = int(plain.peak * 0.7)
    found = memory(512, limit=limit)
    plan = found.checkpoints
    assert plan is not None and plan.peak <= limit
    assert 0 < len(plan.layers) < 4

    model = blocks()
    for name in plan.layers:  # the same layers, as a program checkpoints them
        block = model.get_submodule(name)
        block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=False)
    wanted = PlainStep(model, torch.randn(512, 32), "SGD").peak()
    assert abs(plan.peak / wanted - 1) < 0.03
    # PyTorch stops before the second product of a block, whose output no gradient needs. A product
    # of 512 x 32 by 32 x 128 has two FLOPs for each multiply-add.
    assert plan.flops == len(plan.layers) * (2 * 512 * 32 * 128)


def test_checkpoints_that_do_not_suffice_are_said_so() -> None:
    plan = memory(512, limit=350_000).checkpoints
    assert plan is not None and plan.layers == () and plan.peak > 350_000


def test_a_limit_below_the_parameters_is_refused() -> None:
    with pytest.raises(RequestError, match="parameters and buffers"):
        memory(8, limit=1000)
    size = sum(p.numel() * 4 for p in blocks().parameters())
    with pytest.raises(RequestError, match="optimizer"):
        memory(8, limit=int(1.5 * size))


@torch.library.custom_op("hookscope_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("function", "subject"),
    [
        (lambda self, x: x + 1 if x.sum() > 0 else x, "depends on values"),
        (lambda self, x: twice(x), "tensors without values"),
        (lambda self, x: torch.from_numpy(x.numpy() + 1), "reads values"),
    ],
)
def test_what_cannot_run_without_values_is_explained(function: Any, subject: str) -> None:
    with pytest.raises(ForwardError, match=subject) as caught:
        hookscope.memory(Module(function), input=torch.ones(2, 3))
    assert caught.value.hint


def test_a_detector_in_training_is_explained() -> None:
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None)
    with pytest.raises(ForwardError, match="targets"):
        hookscope.memory(model, input=[torch.rand(3, 64, 64)], optimizer="sgd")


# Outputs that are made from earlier ones are those that the operators return


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "value", "optimizer"),
    [
        (resnet, images(2, 64), "adamw"),
        (unet, images(2, 64), "rmsprop"),
        (vit, images(2, 64), "adadelta"),
        (llama, tokens(2, 64), "sgd"),
        (llama, tokens(2, 64), None),
    ],
)
def test_the_answer_is_the_same_without_the_cache(make, value, optimizer, monkeypatch) -> None:
    with_cache = hookscope.memory(make(), input=value, optimizer=optimizer)
    monkeypatch.setattr(OutputCache, "run", lambda self, func, args, kwargs: func(*args, **kwargs))
    assert hookscope.memory(make(), input=value, optimizer=optimizer) == with_cache


@pytest.mark.parametrize(
    "names", [{}, {"FakeTensor": lambda mode, values: values, "in_kernel_invocation_manager": None}]
)
def test_the_answer_is_the_same_where_private_names_are_missing_or_other(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = images(2, 64)
    expected = hookscope.memory(resnet(), input=value, optimizer="adamw")
    monkeypatch.setattr(output_cache, "fake_tensors", lambda: SimpleNamespace(**names))
    assert hookscope.memory(resnet(), input=value, optimizer="adamw") == expected


def test_integers_are_not_taken_for_floats() -> None:
    def both(self: Module, x: torch.Tensor) -> torch.Tensor:
        whole = torch.arange(4)
        assert (whole * 1).dtype is torch.int64 and (whole * 1.0).dtype is torch.float32
        assert (whole * 1).dtype is torch.int64 and (whole + True).dtype is torch.int64
        return x

    hookscope.memory(Module(both), input=torch.ones(2, 3))


def test_a_view_shares_the_storage_of_its_argument() -> None:
    views = Module(lambda self, x: sum(x.t().reshape(64, 1024).t() for _ in range(4)))
    copies = Module(lambda self, x: sum(x.t().clone().t() for _ in range(4)))
    peaks = [hookscope.memory(one, input=torch.ones(1024, 64)).peak for one in (views, copies)]
    assert peaks[0] < peaks[1]


def test_an_optimizer_that_reads_a_norm_has_a_peak() -> None:
    found = hookscope.memory("resnet18", shape=(2, 3, 64, 64), optimizer="adafactor")
    model, state = resnet(), 0
    optimizer = torch.optim.Adafactor(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for one in optimizer.state.values():
        state += sum(t.untyped_storage().nbytes() for t in one.values() if torch.is_tensor(t))
    wide = hookscope.memory(model, input=images(2, 64), optimizer="adafactor")
    assert wide.parts.optimizer == state < found.parts.optimizer


def test_an_exported_program_in_its_mode_is_not_trained(tmp_path) -> None:
    program = torch.export.export(nn.Linear(8, 4).eval(), (torch.ones(2, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    assert hookscope.memory(tmp_path / "net.pt2", shape=(2, 8)).parts.parameters == 144
    with pytest.raises(RequestError, match="optimizer"):
        hookscope.memory(tmp_path / "net.pt2", shape=(2, 8), optimizer="sgd")
