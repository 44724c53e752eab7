"""Public functions made of groups of options: flat keywords, checked in groups when called."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from types import FunctionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from hookscope.specs.settings import settings_of

F = TypeVar("F", bound=Callable[..., Any])

MODEL = "model"  # the only field that may be given by position
_WIDTH = 96


class Only:
    """In ``Annotated[Group, Only("a", "b")]``: the function takes these fields alone."""

    def __init__(self, *names: str) -> None:
        self.names = names


PLAIN_RUN = Only("seed", "dtype", "device", "train")
REQUIRED = object()  # in Annotated[ModelRequest, REQUIRED]: the model has no default


@dataclass(frozen=True)
class _Group:
    """A parameter of the written function that stands for some keywords of the public one."""

    type: type
    names: tuple[str, ...]
    required: bool

    @classmethod
    def of(cls, annotation: Any) -> _Group | None:
        notes: Sequence[Any] = ()
        if get_origin(annotation) is Annotated:
            annotation, *notes = get_args(annotation)
        described = dict(settings_of(annotation)) if hasattr(annotation, "section") else {}
        if not described:
            return None
        only = next((note.names for note in notes if isinstance(note, Only)), tuple(described))
        return cls(annotation, only, REQUIRED in notes)

    def parameters(self) -> Iterator[inspect.Parameter]:
        by_name = {field.name: field for field in fields(self.type)}
        described = dict(settings_of(self.type))
        for name in self.names:
            default = by_name[name].default
            if default is MISSING or (name == MODEL and self.required):
                default = inspect.Parameter.empty
            kind = (
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if name == MODEL
                else inspect.Parameter.KEYWORD_ONLY
            )
            annotation = described[name].annotation or by_name[name].type
            yield inspect.Parameter(name, kind, default=default, annotation=annotation)

    def lines(self) -> Iterator[str]:
        described = dict(settings_of(self.type))
        for name in self.names:
            about = described[name]
            text = about.python or about.help[:1].lower() + about.help[1:]
            yield textwrap.fill(
                f"{name}: {text}",
                _WIDTH,
                initial_indent=" " * 4,
                subsequent_indent=" " * 8,
                break_long_words=False,
                break_on_hyphens=False,
            )


def public(function: F) -> Any:
    """Return the public function of one that takes groups of options.

    Its keywords are the fields of the groups, with their defaults; the model may be given by
    position. The groups are made in the order of the parameters, which checks them. The docstring
    gets a line under ``Args`` for each keyword.

    Example:
        >>> from hookscope.specs.run_options import RunOptions
        >>> @public
        ... def double(run: Annotated[RunOptions, Only("seed")], *, times: int = 2) -> int:
        ...     \"\"\"Return a multiple of the seed.\"\"\"
        ...     return run.seed * times
        >>> double(seed=3), list(inspect.signature(double).parameters)
        (6, ['seed', 'times'])
    """
    hints = get_type_hints(function, include_extras=True)
    written = inspect.signature(function)
    groups = {name: _Group.of(hints[name]) for name in written.parameters}
    flat: list[inspect.Parameter] = []
    for name, own in written.parameters.items():
        group = groups[name]
        flat += [own] if group is None else group.parameters()
    flat.sort(key=lambda parameter: parameter.kind)
    signature = written.replace(parameters=flat)

    def flat_function(*args: Any, **keywords: Any) -> Any:
        try:
            given = signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        values = {
            name: given[name]
            if group is None
            else group.type(**{key: given[key] for key in group.names if key in given})
            for name, group in groups.items()
            if group is not None or name in given
        }
        return function(**values)

    # With the globals of the written function, so that its module owns it and doctest runs its
    # example.
    made = FunctionType(
        flat_function.__code__,
        function.__globals__,
        function.__name__,
        closure=flat_function.__closure__,
    )
    functools.update_wrapper(made, function)
    del made.__wrapped__  # type: ignore[attr-defined]
    made.__signature__ = signature  # type: ignore[attr-defined]
    made.__doc__ = _documented(function.__doc__ or "", groups.values())
    return made


def _documented(text: str, groups: Iterable[_Group | None]) -> str:
    """Add the lines of the groups to a docstring, under ``Args``."""
    text = inspect.cleandoc(text)
    lines = "\n".join(line for group in groups if group is not None for line in group.lines())
    before, args, own = text.partition("\nArgs:\n")
    if args:
        return f"{before}{args}{lines}\n{own}"
    for section in ("Returns", "Raises", "Example"):
        before, found, rest = text.partition(f"\n{section}:\n")
        if found:
            return f"{before}\nArgs:\n{lines}\n\n{section}:\n{rest}"
    return f"{text}\n\nArgs:\n{lines}\n"
