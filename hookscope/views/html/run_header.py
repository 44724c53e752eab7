"""The head of a run's page: what ran, how it ended, what was not watched, and the findings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from hookscope.files.words import count_text, plural, visible
from hookscope.stores.runs.run_info import ModelInfo, OptimizerInfo, RunInfo, place_of
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.html.run_page import PageModel, RunSummary

_VERDICTS = {
    "running": "Running, or killed: the end was not recorded",
    "finished": "Finished",
    "failed": "Failed",
    "interrupted": "Interrupted",
    "stopped": "Stopped at a bad value",
}


def run_summary(run: TrainingRun, letter: str) -> RunSummary:
    """Return the summary of a run; ``letter`` is ``A``, ``B`` and so on if there are several."""
    info = run.info
    verdict = (
        f"{_VERDICTS[info['status']]} after {plural(info['steps'], 'step')}"
        f" in {duration_text(info['seconds'])}."
    )
    warnings = (f"The record is incomplete: {info['incomplete']}",) if info["incomplete"] else ()
    return RunSummary(
        letter,
        visible(run.folder.resolve().name),
        visible(shlex.join([info["script"], *info["arguments"]])),
        verdict,
        tuple(map(visible, warnings)),
        tuple((name, visible(text)) for name, text in _facts(info)),
        tuple((visible(entry["what"]), visible(entry["reason"])) for entry in info["unwatched"]),
        tuple(_events(run)),
    )


def duration_text(seconds: float) -> str:
    """Return a duration with its two largest units.

    >>> duration_text(4.2), duration_text(125), duration_text(7260)
    ('4.2 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _facts(info: RunInfo) -> Iterable[tuple[str, str]]:
    yield "started", info["started"]
    if info["exit_status"] is not None:
        yield "exit status", str(info["exit_status"])
    every = info["every"]
    yield (
        "sampling",
        (f"every {count_text(every)} steps" if every > 1 else "every step")
        if every
        else "steps 0, 1, 2, 4, 8, 16, 32, and every 50th",
    )
    if rule := info.get("loss"):
        yield "loss of a step", f"{rule} over its backward passes"
    if info["layers"]:
        yield "layers", ", ".join(info["layers"])
    yield from (("model", _model_text(model)) for model in info["models"])
    yield from (("optimizer", _optimizer_text(optimizer)) for optimizer in info["optimizers"])
    if info["world_size"] > 1:
        yield "rank", f"{info['rank']} of {info['world_size']} processes"
    yield "versions", ", ".join(f"{name} {text}" for name, text in info["versions"].items())


def _model_text(model: ModelInfo) -> str:
    parts = [
        f"{plural(model['parameters'], 'parameter')} in {plural(len(model['layers']), 'layer')}"
    ]
    if model["layout"] == "sharded":
        parts.append("each rank holds a part of each parameter")
    return f"{model['name']} ({model['type']}): {', '.join(parts)}"


def _optimizer_text(optimizer: OptimizerInfo) -> str:
    of = f" of {', '.join(optimizer['models'])}" if optimizer["models"] else ""
    groups = plural(optimizer["groups"], "parameter group")
    return f"{optimizer['name']} ({optimizer['type']}): {groups}{of}"


def _events(run: TrainingRun) -> Iterable[str]:
    for event in run.events:
        place = f"step {count_text(event.step)} ({place_of(event, run.info)})"
        file = f" See {event.file}." if event.file else ""
        yield visible(f"Stopped by --stop-on {event.kind} at {place}: {event.message}.{file}")


def layer_links(models: Sequence[PageModel]) -> dict[str, str]:
    """Return the address of each layer on the page; of layers of one name, of the first."""
    return {
        layer.name: f"#m{m}l{n}"
        for m, model in reversed(list(enumerate(models)))
        for n, layer in enumerate(model.layers)
    }
