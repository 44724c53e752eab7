"""What a file may name of what is opened or run: a file of data, or settings that were found.

Such a file may come with a download. It names no code, nothing that is passed to code, no address,
and no file outside its own folder. What it may not name, the user can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hookscope.errors import HookscopeError
from hookscope.files.hub_source import names_hub
from hookscope.files.input_list import is_list
from hookscope.files.own_folder import ADDRESS_OUTSIDE, why_folder_not_read, why_not_opened
from hookscope.files.shell_words import quote_word
from hookscope.specs import input_spec, model_spec
from hookscope.specs.catalog import NO_ADAPTER
from hookscope.specs.literal_arguments import split_call

_CODE = "names Python code"
_PASSED = "is passed to Python code"
_HF = "hf:"

Judge = Callable[[str, str], str]  # of a value, in a file of a folder: why it may not be named


@dataclass(frozen=True)
class RefusedName:
    """A value that a file may not name: the option that gives it, and why, as a clause."""

    option: str
    value: Any
    why: str

    def sentence(self, file: str | os.PathLike[str], kind: str) -> str:
        """Return what is wrong with a file of this kind."""
        said = f"{os.fspath(file)} sets {self.option} = {self.value!r}, which {self.why}"
        return f"{said}; {kind} may not do that."

    @property
    def runs_code(self) -> bool:
        """Whether it is Python code, or an argument of it."""
        return self.why in (_CODE, _PASSED)

    @property
    def given(self) -> str:
        """The option as the user gives it."""
        values = self.value if isinstance(self.value, list) else [self.value]
        return " ".join(f"--{self.option} {quote_word(str(value))}" for value in values)


def _code(names_code: Callable[[str], bool]) -> Judge:
    return lambda value, folder: _CODE if names_code(value) else ""


def _model(value: str, folder: str) -> str:
    called, call = split_call(value)
    if model_spec.may_name_code(called):
        return _CODE
    if call:
        return _PASSED
    path = value.removeprefix(_HF)
    if path != value and not os.path.exists(os.path.expanduser(path)):
        return ""  # a name of the hub, which is looked up in the cache
    return why_not_opened(path, folder)


def _input(value: str, folder: str) -> str:
    if input_spec.may_name_code(value):
        return _CODE
    if names_hub(value):
        return ADDRESS_OUTSIDE
    if is_list(value):
        return "is a list of files, which may be anywhere"
    paths = input_spec.paths_in(value)
    if input_spec.STDIN in paths:
        return "is standard input"
    return next(filter(None, (why_folder_not_read(path, folder) for path in paths)), "")


def _weights(value: str, folder: str) -> str:
    return why_not_opened(value, folder) if model_spec.is_weights_file(value) else ""


def _edit(value: str, folder: str) -> str:
    from hookscope.specs.edit import files_read_by

    try:
        files = files_read_by([value])
    except HookscopeError:
        return ""
    return next(filter(None, (why_not_opened(path, folder) for path in files)), "")


def _output(value: str, folder: str) -> str:
    from hookscope.files.output_path import tracker_of

    return ADDRESS_OUTSIDE if tracker_of(value) else why_not_opened(value, folder)


def _always(why: str) -> Judge:
    return lambda value, folder: why


_JUDGES: Mapping[str, Judge] = {
    "model": _model,
    "input": _input,
    "loss": _code(model_spec.may_name_function),
    **dict.fromkeys(("hook", "method"), _always(_CODE)),
    **dict.fromkeys(("hook-arg", "model-arg"), _always(_PASSED)),
    "weights": _weights,
    **dict.fromkeys(("edit", "grad-edit"), _edit),
    "adapter": lambda value, folder: (value != NO_ADAPTER and why_not_opened(value, folder)) or "",
    **dict.fromkeys(("tokenizer", "target", "direction", "labels", "map"), why_not_opened),
    **dict.fromkeys(("output", "chrome"), _output),
}


def refused_name(option: str, value: Any, folder: str | os.PathLike[str]) -> RefusedName | None:
    """Return why a file of a folder may not give an option its value; None if it may.

    >>> refused_name("input", ["x.py:batch"], ".").why, refused_name("input", "random:1x3", ".")
    ('names Python code', None)
    """
    judge = _JUDGES.get(option)
    if judge is None:
        return None
    items = value if isinstance(value, list) else [value]
    why = next(filter(None, (judge(str(item), os.fspath(folder)) for item in items)), "")
    return RefusedName(option, value, why) if why else None
