"""Adapters of the package peft, attached to a model of transformers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookscope.errors import WeightsError, WeightsFileError, cause
from hookscope.files.hashes import BackgroundHash
from hookscope.files.optional_packages import optional_package
from hookscope.files.words import plural
from hookscope.sources import weights
from hookscope.sources.loaded import AdapterInfo
from hookscope.sources.transformers.folder_names import check_adapter_names
from hookscope.specs.catalog import ADAPTER_WEIGHTS
from hookscope.specs.model_spec import check_weights_file, end_sentence
from hookscope.tensors.grad_mode import without_grad
from hookscope.tensors.seeding import seeded_torch

with optional_package("peft", "peft", "--adapter"):
    import peft
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

log = logging.getLogger("hookscope")


def attach_adapter(module: nn.Module, folder: str, seed: int, *, meta: bool) -> AdapterInfo:
    """Replace layers by those of an adapter, whose parameters require a gradient; others stay."""
    check_adapter_names(folder)
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    before = {id(p) for p in module.parameters()}
    file = Path(folder) / ADAPTER_WEIGHTS
    config: Any
    with seeded_torch(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of details that are not the user's
        try:
            config = peft.PeftConfig.from_pretrained(folder, local_files_only=True)
            if meta:
                peft.inject_adapter_in_model(config, module)
                found = None
            else:
                loader: Any = module.load_adapter
                found = loader(folder)  # both of its files are there, so none is looked for
        except Exception as exc:  # peft raises nearly any type
            why = end_sentence(cause(exc).partition("\n")[0])
            raise WeightsError(
                f"The adapter in {folder!r} cannot be attached to {type(module).__name__}: {why}",
                "Give the model that it was made for.",
            ) from exc
    module.eval()
    for parameter in module.parameters():
        is_new = id(parameter) not in before and parameter.is_floating_point()
        parameter.requires_grad_(is_new or id(parameter) in trained)
    kind = str(config.peft_type).rpartition(".")[2]
    layers = [m for m in module.modules() if isinstance(m, BaseTunerLayer)]
    if meta:
        return AdapterInfo(folder, kind, len(layers), None)
    _check_complete(found, str(file))
    changes = _changes(module, layers)
    log.info("adapter: %s of %s, in %s", kind, folder, plural(len(layers), "layer"))
    if changes is False:
        log.warning("adapter: %s changes nothing: all of its updates are zero", folder)
    elif changes is None:
        log.info("adapter: whether it changes anything is not known for %s", kind)
    file_hash = BackgroundHash(check_weights_file(str(file)).blake3)
    return AdapterInfo(folder, kind, len(layers), changes, file_hash)


def _check_complete(found: Any, file: str) -> None:
    missing, mismatched = sorted(map(str, found.missing_keys)), found.mismatched_keys
    if missing or mismatched:
        names = missing or sorted(str(entry[0]) for entry in mismatched)
        what = "lacks" if missing else "has another shape of"
        raise WeightsFileError(
            f"{file} {what} {plural(len(names), 'tensor')} of the adapter, such as {names[0]}.",
            "Save the adapter again, with save_pretrained of peft.",
        )
    weights.warn_mismatches(file, (), sorted(map(str, found.unexpected_keys)))


@without_grad
def _changes(module: nn.Module, layers: list[Any]) -> bool | None:
    """Whether some weight is changed; None if a layer does not tell its change."""
    is_known = True
    for layer in layers:
        for name in layer.active_adapters:
            update = _update(layer, name)
            if update is None:
                is_known = False
            elif bool(update.ne(0).any()):
                return True
    for saved in (m for m in module.modules() if isinstance(m, ModulesToSaveWrapper)):
        own = dict(saved.original_module.named_parameters())
        for copy in saved.modules_to_save.values():
            if any(not p.equal(own[name]) for name, p in copy.named_parameters()):
                return True
    return False if is_known else None


def _update(layer: Any, name: str) -> torch.Tensor | None:
    """What an adapter adds to the weight of a layer; None if it does more, or does not tell."""
    does_more = bool(getattr(layer, "use_dora", {}).get(name)) or bool(
        getattr(layer, "lora_bias", {}).get(name)
    )
    if does_more or not hasattr(layer, "get_delta_weight"):
        return None
    try:
        update = layer.get_delta_weight(name)
    except (KeyError, NotImplementedError, AttributeError, TypeError):
        return None
    return update if isinstance(update, torch.Tensor) else None
