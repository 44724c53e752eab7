"""What a run could not see, as its numbers show: layers without outputs, losses, updates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hookscope.specs.patterns import ROOT
from hookscope.stores.runs.run_info import RunInfo, Unwatched
from hookscope.stores.runs.series import LOSS, Series
from hookscope.stores.runs.series_kinds import OUTPUT, OUTPUT_GRAD, PARAMETER_GRAD, kind_of
from hookscope.training.watched_models import WatchedModel, WatchedModels

NOT_CALLED = (
    "its forward was called directly, a function took its weights, or torch.func transformed it"
)
NO_LOSS = "no backward() began at a single number"
NO_OPTIMIZER = "no optimizer of torch.optim was made"
NO_MODEL = "its parameters are in no module, as copies of weights are"


def recorded_gaps(
    models: WatchedModels,
    info: RunInfo,
    series: Collection[Series],
    last: Mapping[Series, float],
) -> Iterator[Unwatched]:
    """Yield what is missing in the record of some steps, with the likely reason."""
    if LOSS not in series:
        has_gradients = any(kind_of(one) == OUTPUT_GRAD for one in series)
        what = "the loss" if has_gradients else "the loss and gradients at outputs"
        yield {"what": what, "reason": NO_LOSS}
    if not info["optimizers"]:
        yield {"what": "updates and learning rates", "reason": NO_OPTIMIZER}
    for optimizer in info["optimizers"]:
        if not optimizer["models"]:
            yield {"what": f"updates of {optimizer['name']}", "reason": NO_MODEL}
    called = {(one.model, one.module) for one in series if kind_of(one) == OUTPUT}
    for model in models:
        for name in _uncalled(model, models, called, last):
            yield {"what": f"outputs of {name} of {model.name}", "reason": NOT_CALLED}


def _uncalled(
    model: WatchedModel,
    models: WatchedModels,
    called: Collection[tuple[str, str]],
    last: Mapping[Series, float],
) -> Iterator[str]:
    """The layers that have a gradient without a call, and the model itself if its layers were."""
    trained = {
        one.module
        for one, value in last.items()
        if one.model == model.name and kind_of(one) == PARAMETER_GRAD and value
    }
    is_in_use = any(name == model.name for name, _ in called)
    own = {id(weight) for weight in model.module.parameters()}
    others = {id(w) for other in models if other is not model for w in other.module.parameters()}
    if not is_in_use and own & others:  # the template of a scripted or copied one
        return
    for layer in models.layers_with_hooks(model):
        has_run = is_in_use if layer.name == ROOT else layer.name in trained
        if has_run and (model.name, layer.name) not in called:
            yield layer.title
