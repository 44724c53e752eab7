"""The logit lens equals the norm and the head applied by hand to what plain hooks see."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import hookscope
from hookscope.errors import InputError, LayerError, RequestError
from tests.model_analysis.language_models import (
    IDS,
    SMALL,
    beside_padding,
    built,
    gemma,
    gpt2,
    llama,
    t5,
)
from tests.zoo import Module, Skip

X = torch.randint(64, (2, 7), generator=torch.Generator().manual_seed(1))


def qwen() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SMALL))


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(hidden_size=16, num_hidden_layers=3, state_size=4, use_cache=False, **IDS)
    )


# Each model, with the names of its blocks, final norm and head.
FAMILIES: list[tuple[Callable[[], Any], str, str]] = [
    (gpt2, "transformer.h", "transformer.ln_f"),
    (llama, "model.layers", "model.norm"),
    (qwen, "model.layers", "model.norm"),
    (gemma, "model.layers", "model.norm"),
    (mamba, "backbone.layers", "backbone.norm_f"),
]


def stream_by_hand(model: Any, stack: str, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What goes into the first block and what each block returns, and the model's logits."""
    blocks = list(model.get_submodule(stack))
    values: dict[str, Tensor] = {}

    def first(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values[f"{stack}.0/input"] = (args or (kwargs["hidden_states"],))[0].clone()

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            values[name] = (output[0] if isinstance(output, tuple) else output).clone()

        return hook

    handles = [blocks[0].register_forward_pre_hook(first, with_kwargs=True)]
    handles += [b.register_forward_hook(after(f"{stack}.{n}")) for n, b in enumerate(blocks)]
    with torch.no_grad():
        logits = model(input_ids=x).logits
    for handle in handles:
        handle.remove()
    return values, logits


@pytest.mark.parametrize(
    ("make", "stack", "norm"), FAMILIES, ids=lambda v: getattr(v, "__name__", "")
)
def test_every_cell_is_that_of_the_loop_by_hand(
    make: Callable[[], Any], stack: str, norm: str
) -> None:
    model = built(make)
    values, logits = stream_by_hand(model, stack, X)
    found = hookscope.lens(model, input={"input_ids": X}, target=7)
    assert (found.norm, found.head, found.notes) == (norm, "lm_head", ())
    assert found.layers == tuple(values)
    cap = getattr(model.config, "final_logit_softcapping", None)
    final = logits.double().log_softmax(-1)
    cells = iter(found.cells)
    for layer, value in values.items():
        with torch.no_grad():
            read = model.lm_head(model.get_submodule(norm)(value))
            read = torch.tanh(read / cap) * cap if cap else read
        q = read.double().log_softmax(-1)
        for row in range(2):
            for position in range(7):
                cell = next(cells)
                assert (cell.layer, cell.row, cell.position) == (layer, row, position)
                here = q[row, position]
                best = here.topk(5)
                assert [c.token.index for c in cell.top] == best.indices.tolist()
                shares = [c.probability for c in cell.top]
                assert shares == pytest.approx(best.values.exp().tolist(), rel=1e-5)
                assert cell.rank == int((here > here[7]).sum()) + 1
                assert cell.probability == pytest.approx(float(here[7].exp()), rel=1e-5)
                p = final[row, position]
                kl = float((p.exp() * (p - here)).sum())
                assert cell.kl == pytest.approx(kl, rel=1e-4, abs=1e-6)
    last = found.cell(found.layers[-1])
    assert last.kl == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_cells_and_changes_none(side: str) -> None:
    model, short = built(llama), X[:1, :4]
    batch = hookscope.lens(model, input=beside_padding(X[1:], short, side))
    alone = hookscope.lens(model, input={"input_ids": short})
    assert len(batch.rows[1].padding) == 3
    assert len(list(batch.real_positions(1))) == 4
    for layer, cells in batch.by_layer(1):
        expected = [cell for cell in alone.cells if cell.layer == layer]
        assert [cell.top[0].token for cell in cells] == [cell.top[0].token for cell in expected]
        assert [cell.rank for cell in cells] == [cell.rank for cell in expected]
        assert [c.kl for c in cells] == pytest.approx([c.kl for c in expected], rel=1e-3, abs=1e-6)
        assert [cell.position for cell in cells] == list(batch.real_positions(1))


def test_argmax_follows_the_prediction_of_the_model() -> None:
    model = built(llama)
    with torch.no_grad():
        best = model(input_ids=X).logits.argmax(-1)
    found = hookscope.lens(model, input={"input_ids": X}, layers="model.layers.2")
    assert [cell.target.index for cell in found.cells] == best.flatten().tolist()
    assert {cell.rank for cell in found.cells} == {1}


class Net(nn.Module):
    """Two blocks that return the residual stream, registered in the other order than they run."""

    def __init__(self, ending: str = "norm") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.later, self.first = (nn.ModuleList(Skip(8) for _ in range(2)) for _ in range(2))
        self.embed, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.drop, self.head = nn.Dropout(), nn.Linear(8, 20)
        self.ending = ending

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in (*self.first, *self.later):
            x = block(x)
        if self.ending == "functional":
            x = nn.functional.layer_norm(x, (8,))
        elif self.ending in ("norm", "dropout"):
            x = self.norm(x)
        return self.head(self.drop(x) if self.ending == "dropout" else x)  # type: ignore[no-any-return]


IDS_OF_NET = torch.tensor([[3, 1, 4]])


@pytest.mark.parametrize(
    ("ending", "norm", "exact"),
    [
        ("norm", "norm", True),
        ("none", "", True),
        ("dropout", "norm", True),
        ("functional", "", False),
    ],
)
def test_the_last_block_gives_the_output_or_a_note_says_that_it_does_not(
    ending: str, norm: str, exact: bool
) -> None:
    found = hookscope.lens(Net(ending), input=IDS_OF_NET)
    assert (found.norm, found.head) == (norm, "head")
    assert found.layers == ("later.0/input", "later.0", "later.1")
    assert (found.cell("later.1").kl < 1e-6) is exact
    assert (found.notes == ()) is exact


def test_all_that_follows_the_last_block_of_a_masked_model_is_applied() -> None:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {name: size for name, size in SMALL.items() if "key_value" not in name}
    model = built(lambda: BertForMaskedLM(BertConfig(**sizes | {"num_hidden_layers": 2})))
    found = hookscope.lens(model, input={"input_ids": X})
    assert (found.norm, found.head) == ("cls.predictions.transform", "cls.predictions.decoder")
    assert found.notes == ()
    assert found.cell("bert.encoder.layer.1").kl < 1e-6


def test_an_encoder_and_its_decoder_have_masks_of_their_own() -> None:
    model = built(t5)
    mask = torch.ones_like(X)
    mask[0, 4:] = 0
    call = {"input_ids": X, "attention_mask": mask, "decoder_input_ids": X}
    found = hookscope.lens(model, input=call)
    assert found.layers[-1] == "decoder.block.1"
    assert [row.padding for row in found.rows] == [(), ()]
    # Its logits are those of the scaled stream, which no module returns.
    assert found.notes and "decoder" in found.layers[0]


def test_a_layer_that_is_the_norm_is_read_without_it() -> None:
    found = hookscope.lens(Net(), input=IDS_OF_NET, layers=["later.1", "norm"])
    assert (found.norm, found.layers) == ("norm", ("later.1", "norm"))
    assert max(cell.kl for cell in found.cells) < 1e-6


def test_values_that_are_not_finite_never_make_the_target_the_first() -> None:
    model = Net()
    with torch.no_grad():
        model.head.bias[5] = -math.inf
    clean = hookscope.lens(model, input=IDS_OF_NET, target=5)
    assert clean.notes == ()
    assert {cell.rank for cell in clean.cells} == {20}
    assert max(cell.kl for cell in clean.cells if cell.layer == "later.1") < 1e-6
    with torch.no_grad():
        model.norm.weight.fill_(math.nan)
    broken = hookscope.lens(model, input=IDS_OF_NET, target=3)
    assert {cell.rank for cell in broken.cells} == {20}
    assert "NaN" in broken.notes[0]


def test_an_input_of_padding_alone_is_refused() -> None:
    call = {"input_ids": X, "attention_mask": torch.zeros_like(X)}
    with pytest.raises(InputError, match="padding"):
        hookscope.lens(built(llama), input=call)


def test_a_classifier_predicts_its_classes_at_every_patch() -> None:
    model = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)
    nn.init.normal_(model.heads.head.weight)
    whole = hookscope.lens(model, shape=(1, 3, 32, 32), target=3)
    assert (whole.norm, whole.head, whole.notes) == ("encoder.ln", "heads.head", ())
    assert (len(whole.layers), whole.positions) == (3, 17)
    early = whole.layers[1]
    alone = hookscope.lens(model, shape=(1, 3, 32, 32), target=3, layers=early)
    assert alone.cells == tuple(cell for cell in whole.cells if cell.layer == early)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"target": 64}, RequestError, "target 64 .* 64 tokens"),
    ({"target": " Paris"}, RequestError, "' Paris'"),
    ({"target": ""}, RequestError, "''"),
    ({"norm": "model.nrm"}, LayerError, "'model.nrm'"),
    ({"head": "zzz"}, LayerError, "'zzz'.\n'hookscope tree "),
    ({"head": "model.norm2"}, LayerError, "'model.norm2'"),
    ({"head": "model.layers.0.mlp"}, RequestError, "mlp .* 64"),
    ({"layers": "model.layers.*.mlp.up_proj"}, LayerError, "up_proj is 32 wide"),
    ({"layers": "nothing"}, LayerError, "nothing"),
    ({"norm": "model.layers.0"}, RequestError, "model.layers.0"),
    ({"norm": "model.embed_tokens"}, RequestError, "model.embed_tokens"),
    ({"layers": ["model.norm", "model.rotary_emb"]}, LayerError, "1x7 .*model.norm 2x7"),
]


@pytest.mark.parametrize(("options", "error", "subject"), WRONG)
def test_a_wrong_request_is_refused(
    options: dict[str, Any], error: type[Exception], subject: str
) -> None:
    with pytest.raises(error, match=subject):
        hookscope.lens(built(llama), input={"input_ids": X}, **options)


def test_a_model_without_logits_is_refused() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
    model = Module(lambda self, x: [block(x) for block in self.blocks], blocks=blocks)
    with pytest.raises(RequestError, match="logits"):
        hookscope.lens(model, input=torch.ones(1, 3, 4))


def test_the_sample_knows_the_capital_at_its_second_layer(repo: Path) -> None:
    folder = f"hf:{repo / 'sample_models' / 'capitals'}"
    found = hookscope.lens(folder, input="text:the capital of France is", target=" Paris")
    assert [token.text for token in found.rows[0].tokens][-2:] == [" France", " is"]
    ranks = [found.cell(layer).rank for layer in found.layers]
    assert ranks[0] > 1 and ranks[-1] == 1
    assert found.cell(found.layers[-1]).top[0].token.text == " Paris"
