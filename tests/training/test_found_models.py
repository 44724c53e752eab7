"""The models of a script are found without its help, with the names that it uses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from hookscope.training.found_models import (
    compiled_parts,
    dense_values,
    find_models,
)

pytestmark = pytest.mark.usefixtures("no_other_models")


def found(*wanted: nn.Module, known: Mapping[nn.Module, str] | None = None) -> dict[str, nn.Module]:
    parameters = [parameter for module in wanted for parameter in module.parameters()]
    return {model.name: model.module for model in find_models(parameters, known or {})}


def test_a_model_has_the_name_of_its_variable_and_no_part_of_it_is_a_model() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    assert found(network) == {"network": network}


class Trainer:
    """Holds its model in an attribute, as many trainers do."""

    def __init__(self) -> None:
        self.student = nn.Linear(2, 2)

    def fit(self) -> dict[str, nn.Module]:
        return found(self.student)


def test_an_attribute_of_a_trainer_names_a_model() -> None:
    trainer = Trainer()
    assert trainer.fit() == {"student": trainer.student}


def test_models_without_a_variable_have_the_names_of_their_classes() -> None:
    pair = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Bilinear(2, 2, 2)]
    names = [name.rstrip("0123456789") for name in found(*pair)]
    assert sorted(names) == ["Bilinear", "Linear", "Linear"]


def test_a_wrapper_gives_way_to_the_model_in_it() -> None:
    inner = nn.Linear(2, 2)
    wrapped = nn.DataParallel(torch.compile(inner))
    del inner
    assert list(found(wrapped)) == ["wrapped"]
    assert type(found(wrapped)["wrapped"]) is nn.Linear


def test_models_of_the_optimizer_come_first_and_those_without_parameters_not_at_all() -> None:
    teacher, student, loss = nn.Linear(2, 2), nn.Linear(2, 2), nn.MSELoss()
    assert list(found(student)) == ["student", "teacher"]
    assert list(found(teacher)) == ["teacher", "student"]
    assert loss is not None


def test_a_model_keeps_its_name_and_a_larger_one_takes_its_place() -> None:
    body = nn.Linear(2, 2)
    known = {body: "first"}
    assert found(body, known=known) == {"first": body}
    whole = nn.Sequential(body, nn.Linear(2, 1))
    assert found(body, known=known) == {"whole": whole}


@pytest.mark.parametrize(("parts", "extra"), [(1, 0), (1, 2), (4, 3)])
def test_a_model_is_found_once_whatever_shares_its_parts(parts: int, extra: int) -> None:
    shared = nn.Linear(2, 2)
    network = nn.ModuleList([nn.Sequential(shared) for _ in range(parts)])
    others = [nn.Linear(1, 1) for _ in range(extra)]
    names = list(found(network))
    assert names[0] == "network"
    assert len(names) == 1 + len(others)


def test_compiled_parts() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()), nn.Tanh())
    assert compiled_parts(model) == set()
    model[1].compile()
    assert compiled_parts(model) == {model[1], model[1][0]}
    model[2] = torch.compile(model[2])
    assert {type(part) for part in compiled_parts(model)} == {nn.Sequential, nn.ReLU, nn.Tanh}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_values_of_a_gradient_have_its_norm(layout: torch.layout) -> None:
    dense = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    gradient = dense.to_sparse(layout=layout) if layout is not torch.strided else dense
    if layout is torch.sparse_coo:  # entries of one place are added up
        gradient = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 4.0], (2, 2))
    assert dense_values(gradient).norm().item() == 5.0
