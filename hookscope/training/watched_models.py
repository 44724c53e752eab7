"""The watched models of a script, their chosen layers, and those that can have no hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookscope.errors import LayerError
from hookscope.files.suggestions import did_you_mean
from hookscope.hooks.layers import GONE, Layer, layers_of, own_parameters, select, weakly
from hookscope.hooks.process_hooks import Undo, before_any_call, on_new_parameters
from hookscope.sources.torchscript.private import is_scripted
from hookscope.sources.wrappers import class_name, unwrapped
from hookscope.specs.patterns import near_patterns, split_exclusions
from hookscope.stores.runs.run_info import RunModel, Unwatched
from hookscope.tensors.torch_internals import is_tracing
from hookscope.training.found_models import FoundModel, compiled_parts, find_models
from hookscope.training.layer_measures import inside_encoder_layers
from hookscope.training.parameter_measures import NamedParameters

EVALUATED = "the model is evaluated, without gradients"
MAX_SEARCHES = 50  # each goes through all objects of the process
COMPILED = "compiled; a hook would change what is compiled"
SCRIPTED = "TorchScript has no hooks"


class WatchedModel:
    """A model and its chosen layers."""

    def __init__(self, found: FoundModel, patterns: Iterable[str]) -> None:
        self.name = found.name
        self._module = ref(found.module)  # the script frees it when it wants
        self._type = class_name(found.module)
        self._size, self._is_sharded = 0, False
        self._weights: list[ref[Tensor]] = []
        self.is_trained = False
        self._patterns = tuple(patterns)
        self.layers: tuple[Layer, ...] = ()
        self.unmatched: list[str] = []
        self._state: list[int] = []
        self.renew()

    @property
    def module(self) -> nn.Module:
        """The module; ``GONE`` once the script has deleted it."""
        return self._module() or GONE

    def renew(self) -> bool:
        """Look at the model again; return whether its modules or parameters have changed."""
        state = _ids_of_parts(self.module)
        if state == self._state or self.module is GONE:
            return False
        self._measure()
        self._state = state
        vars(self).pop("parameters", None)
        self.unmatched = [one for one in self._patterns if not self._matches(one)]
        kept = [one for one in self._patterns if one not in self.unmatched]
        included, _ = split_exclusions(self._patterns)
        self.layers = ()
        if not included or not set(included).issubset(self.unmatched):
            with suppress(LayerError):  # the exclusions leave none
                self.layers = weakly(select(self.module, kept))
        return True

    def _measure(self) -> None:
        known: list[Tensor] = list(self.module.parameters())
        self._weights = [*map(ref, known)]
        weights = [weight for weight in known if not is_lazy(weight)]
        self._size = sum(weight.numel() for weight in weights)
        self._is_sharded = FoundModel(self.name, self.module).is_sharded

    def _matches(self, pattern: str) -> bool:
        try:
            select(self.module, [pattern.removeprefix("!")])
        except LayerError:
            return False
        return True

    def near_names(self, pattern: str) -> str:
        """Return the suggestion of a layer for a pattern that matches none; it may be empty."""
        names = [name for layer in layers_of(self.module) for name in (layer.name, *layer.aliases)]
        return did_you_mean(pattern, near_patterns(pattern, names) or names)

    @cached_property
    def parameters(self) -> NamedParameters:
        """The parameters of the chosen layers."""
        return NamedParameters(self.layers)

    @property
    def info(self) -> RunModel:
        """What ``run.json`` says of it."""
        if self.module is not GONE:
            self._measure()
        return {
            "name": self.name,
            "type": self._type,
            "parameters": self._size,
            "layers": [{"name": layer.name, "type": layer.type} for layer in self.layers],
            "layout": "sharded" if self._is_sharded else "whole",
        }

    @property
    def weights(self) -> set[int]:
        """The ids of the parameters that are there, also of a model that was deleted."""
        return {id(weight) for each in self._weights if (weight := each()) is not None}

    def owns(self, optimizer: Optimizer) -> bool:
        """Whether some parameters of an optimizer belong to it."""
        parameters = _parameters_of(optimizer)
        return any(id(weight) in parameters for weight in self.module.parameters())


class WatchedModels:
    """All models that were found."""

    def __init__(
        self, patterns: Iterable[str], given: Mapping[str, nn.Module] | None = None
    ) -> None:
        self.unwatched: list[Unwatched] = []
        self.patterns = tuple(patterns)
        self._models: dict[int, WatchedModel] = {}
        self._are_given = given is not None
        for name, module in (given or {}).items():
            found = FoundModel(name, unwrapped(module))
            self._models[id(found.module)] = WatchedModel(found, self.patterns)
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._taken: set[str] = set()
        self._searches = 0
        self._compiled: WeakSet[nn.Module] = WeakSet()
        self._compiles_functions = False

    def __iter__(self) -> Iterator[WatchedModel]:
        return iter(self._models.values())

    @property
    def can_search(self) -> bool:
        """Whether models were searched for, and may be again."""
        return 0 < self._searches < MAX_SEARCHES

    @property
    def has_compiled(self) -> bool:
        """Whether the script has compiled something."""
        return self._compiles_functions or bool(self._compiled)

    def lacks(self, optimizer: Optimizer) -> bool:
        """Whether a model should be searched for: an optimizer has parameters of an unknown one."""
        if self._are_given or self._searches >= MAX_SEARCHES:
            return False
        known = {id(weight) for model in self for weight in model.module.parameters()}
        return not _parameters_of(optimizer).keys() <= known

    def renew(self) -> bool:
        """Look at all models again; return whether one has other modules or parameters."""
        return sum(model.renew() for model in self) > 0

    def search(self, optimizers: Iterable[Optimizer]) -> None:
        """Search for all models, those of ``optimizers`` first; there must be no hooks."""
        optimizers = list(optimizers)
        self._searches += 1
        if self._searches == MAX_SEARCHES:
            self.note("models made later", f"models were searched for {MAX_SEARCHES} times")
        self._models.clear()
        parameters = [weight for one in optimizers for weight in _parameters_of(one).values()]
        for found in find_models(parameters, self._names, self._taken):
            model = WatchedModel(found, self.patterns)
            model.is_trained = any(model.owns(optimizer) for optimizer in optimizers)
            self._models[id(found.module)] = model
            self._names[found.module] = found.name
            self._taken.add(found.name)

    def on_compile(self, owner: object) -> None:
        """Note that a module, or a function, was compiled."""
        if isinstance(owner, nn.Module):
            self._compiled.update(owner.modules())
        else:
            self._compiles_functions = True
            self.note("outputs of modules, which a compiled function may call", COMPILED)

    def layers_with_hooks(self, model: WatchedModel) -> list[Layer]:
        """The chosen layers of a model that do not run in compiled code, nor in TorchScript."""
        if self._compiles_functions:
            return []
        scripted = {module for module in model.module.modules() if is_scripted(module)}
        if scripted:
            self.note(f"outputs of scripted layers of {model.name}", SCRIPTED)
        compiled = compiled_parts(model.module) | set(self._compiled)
        if not compiled.isdisjoint(model.module.modules()):
            self.note(f"outputs of compiled layers of {model.name}", COMPILED)
        if compiled and (inside := inside_encoder_layers(model.module)):
            # They share a hook of the process, which compiled code would call, too.
            self.note(f"outputs of encoder layers of {model.name}", COMPILED)
            compiled |= inside
        return [layer for layer in model.layers if layer.module not in compiled | scripted]

    def note(self, what: str, reason: str) -> None:
        """Note once that something is not watched."""
        entry: Unwatched = {"what": what, "reason": reason}
        if entry not in self.unwatched:
            self.unwatched.append(entry)


def _ids_of_parts(model: nn.Module) -> list[int]:
    """The ids of all modules and parameters of a model; faster than ``modules()``."""
    parameters: list[int] = []
    modules, known = [model], {id(model)}
    for module in modules:
        parameters += map(id, module._parameters.values())
        for child in module._modules.values():
            if child is not None and id(child) not in known:
                known.add(id(child))
                modules.append(child)
    return [*parameters, *map(id, modules)]


def _parameters_of(optimizer: Optimizer) -> dict[int, Tensor]:
    return {id(weight): weight for group in optimizer.param_groups for weight in group["params"]}


class LateModels:
    """Notices modules that get parameters, and has the models searched for."""

    def __init__(
        self,
        models: WatchedModels,
        is_fresh: Callable[[], bool],
        search: Callable[[], None],
        guard: Callable[[Callable[..., None]], Callable[..., None]],
    ) -> None:
        self._models = models
        self._is_fresh = is_fresh
        self._search = search
        self._guard = guard
        self._new: WeakSet[nn.Module] = WeakSet()
        self._stop_waiting: Undo | None = None

    def install(self) -> list[Undo]:
        """Begin to notice new modules; return how to end it."""
        return [*on_new_parameters(self._guard(self._on_module)), self.wait_no_more]

    def _on_module(self, module: nn.Module) -> None:
        if not self._models.can_search:
            return
        self._new.add(module)
        # A hook on all modules would be compiled.
        if self._stop_waiting is None and not self._models.has_compiled:
            self._stop_waiting = before_any_call(self._guard(self._on_call))

    def _on_call(self, module: nn.Module) -> None:
        if not (torch.compiler.is_compiling() or is_tracing()):
            self.find()

    def find(self) -> None:
        """Search for new models, unless something of the current step would be lost."""
        if not self._new or not self._is_fresh():
            return
        self.wait_no_more()
        known = {id(weight) for model in self._models for weight in model.module.parameters()}
        # An exported or traced copy has the parameters of its model.
        own = {id(weight) for module in self._new for weight in own_parameters(module).values()}
        self._new.clear()
        if own - known:
            self._search()

    def forget(self) -> None:
        """Forget the new modules: all models were searched for."""
        self.wait_no_more()
        self._new.clear()

    def wait_no_more(self) -> None:
        """Remove the hook on all modules; a step of an optimizer has them searched for, too."""
        if self._stop_waiting is not None:
            self._stop_waiting()
            self._stop_waiting = None
