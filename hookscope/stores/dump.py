"""Activations that another program wrote: a file or a folder of arrays; rules for its names.

A dump is opened like weights: headers first, values when they are compared, and no code of a pickle
runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookscope.errors import HookscopeError, RequestError, WeightsFileError, cause
from hookscope.files.output_path import (
    FEATURES_INDEX,
    holds_features,
    is_hookscope_file,
    is_run_folder,
)
from hookscope.files.shell_words import join_words
from hookscope.files.toml_text import parse_toml
from hookscope.files.words import join_first, natural_order
from hookscope.specs.dump_rules import DumpRule, parse_rule
from hookscope.specs.model_spec import CONFIGURATION
from hookscope.stores.weights.checkpoint_parts import WHOLE_FILE
from hookscope.stores.weights.open_weights import (
    are_weights,
    is_weights,
    names_torchvision_model,
    open_weights,
)
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor

_TORCH_SUFFIXES = (".pt", ".pth")
_SUFFIXES = (".npy", ".npz", ".safetensors", *_TORCH_SUFFIXES)
# The last part of the names that parameters and running statistics have in torch and in Keras.
_PARAMETER = re.compile(
    r"(^|[./_])((weight|bias)(_\w+)?|running_(mean|var)|num_batches_tracked|kernel|gamma|beta"
    r"|moving_(mean|variance))$"
)
_BARE = "tensor"  # how the only tensor of a file without names is called
_RULES_HINT = 'Write one rule on each line, in quotes: "blk_{n}_attn" = "blocks.{n}.attn"'


def is_dump(path: str, has_rules: bool = False) -> bool:
    """Whether a path holds activations rather than weights, a model or a result of hookscope.

    A folder without ``config.json`` and with a ``.npy`` file is a dump. Other files that weights
    are read from are one if no name in them is that of a parameter, or if there are rules.
    """
    if names_torchvision_model(path):
        return False
    if os.path.isdir(path):
        if is_run_folder(path) or holds_features(path):
            return False
        if any(
            os.path.exists(os.path.join(path, name)) for name in (FEATURES_INDEX, CONFIGURATION)
        ):
            return False
        files = _files_in(path)
        if any(file.endswith(".npy") for file in files):
            return True
        if not files or all(is_hookscope_file(Path(file)) for file in files):
            return False
    elif not path.endswith(_SUFFIXES) or not is_weights(path):
        return False
    if has_rules:
        return True
    try:
        return not names_parameters(open_dump(path))
    except HookscopeError:
        return False  # it is opened again as weights, which says what is wrong


def is_dump_beside(a: Any, b: Any, has_rules: bool) -> bool:
    """Whether B is a dump that a model or a capture A is compared with; RequestError if A is."""
    dumps = [
        isinstance(side, str | os.PathLike) and is_dump(os.fspath(side), has_rules)
        for side in (a, b)
    ]
    if dumps[0] and not (dumps[1] or are_weights(a) or are_weights(b)):
        raise RequestError(
            f"{a} is a dump of another program, and a dump comes second.",
            "Name the model or the capture first: "
            + join_words(["hookscope", "diff", os.fspath(b), os.fspath(a)]),
        )
    return dumps[1] and not (dumps[0] or are_weights(a))


def names_parameters(names: Iterable[str]) -> bool:
    """Whether one of the names is that of a parameter.

    >>> names_parameters(["fc/weight"]), names_parameters(["fc", "attn_weights", "rnn.weight_hh"])
    (True, True)
    >>> names_parameters(["fc", "attn_weights", "layer1.0/output"])
    False
    """
    return any(_PARAMETER.search(name) for name in names)


def open_dump(path: str) -> WeightSet:
    """Open a file or the files of a folder.

    In a folder, the tensor of a file has the name of the file; several are ``file/name``.
    """
    if not os.path.isdir(path):
        content = _open_file(path)
        names = {name: _stem(path) if name == _BARE else name for name in content}
        return _renamed(content, names, path)
    tensors: dict[str, WeightTensor] = {}
    locations: dict[str, Any] = {}
    for file in _files_in(path):
        content, stem = _open_file(file), _stem(file)
        names = {name: stem if len(content) == 1 else f"{stem}/{name}" for name in content}
        if again := [name for name in names.values() if name in tensors]:
            raise WeightsFileError(
                f"{again[0]!r} is in {tensors[again[0]].file!r} and in {file!r}.",
                "Keep one file for each tensor in the folder.",
            )
        added = _renamed(content, names, path)
        tensors.update(added.tensors)
        locations.update(added.locations)
    return WeightSet(path, "", "arrays in a folder", tensors, {}, locations)


def _renamed(content: WeightSet, names: Mapping[str, str], path: str) -> WeightSet:
    tensors = {new: replace(content.tensors[old], name=new) for old, new in names.items()}
    locations = {new: content.locations[old] for old, new in names.items()}
    return replace(content, path=path, part="", tensors=tensors, locations=locations)


def _files_in(folder: str) -> list[str]:
    names = sorted(os.listdir(folder), key=natural_order)
    paths = (os.path.join(folder, name) for name in names if name.endswith(_SUFFIXES))
    return [path for path in paths if os.path.isfile(path)]


def _open_file(path: str) -> WeightSet:
    return open_weights(f"{path}#{WHOLE_FILE}" if path.endswith(_TORCH_SUFFIXES) else path)


def _stem(path: str) -> str:
    return os.path.basename(path).rpartition(".")[0]


def read_rules(path: str) -> tuple[DumpRule, ...]:
    """Read a file of rules for the names of a dump."""
    try:
        content = parse_toml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(
            f"The rules in {path} cannot be read: {cause(error)}.", _RULES_HINT
        ) from error
    wrong = [key for key, module in content.items() if not isinstance(module, str)]
    if wrong or not content:
        what = f"{join_first(wrong)} is not set to the name of a module" if wrong else "it is empty"
        raise _not_rules(path, what)
    return tuple(parse_rule(text, module) for text, module in content.items())


def _not_rules(path: str, why: str) -> RequestError:
    return RequestError(f"The rules in {path} cannot be read: {why}.", _RULES_HINT)
