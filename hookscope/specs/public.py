"""Public functions made of groups of options: flat keywords, checked in groups when called."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from types import FunctionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from hookscope.errors import RequestError
from hookscope.specs.request import Request
from hookscope.specs.settings import described_fields, spell_option
from hookscope.specs.subject_kinds import MODEL_AND_WEIGHTS, MODELS, Subject

F = TypeVar("F", bound=Callable[..., Any])

REQUEST = "request"
MODEL = "model"  # the only field that may be given by position
_GROUPS = ("hookscope.specs.", "hookscope.commands.")  # where groups of options are declared
_WIDTH = 96
_ARGS_LINE = re.compile(r"^ {4}(?=\w)", re.MULTILINE)


class Only:
    """In ``Annotated[Group, Only("a", "b")]``: the function takes these fields alone."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Without:
    """In ``Annotated[Group, Without("a", "b")]``: the function takes all other fields."""

    def __init__(self, *names: str) -> None:
        self.names = names


PLAIN_RUN = Only("seed", "dtype", "device", "train")
PLAIN_LOSS = Only("loss", "target", "reduction", "raw")
NO_TEXTS = Only("input", "shape", "preprocess", "size", "mean", "std")  # of InputRequest
REQUIRED = object()  # in Annotated[ModelRequest, REQUIRED]: the model has no default


def _is_default(value: Any, default: Any) -> bool:
    if value is None or value is default:
        return True
    if isinstance(value, str | tuple | list | Mapping) and not value:
        return True
    # Not for others, such as a tensor, whose comparison is no bool.
    return isinstance(value, str | bool | int | float) and bool(value == default)


@dataclass(frozen=True)
class _Group:
    """A parameter of the written function that stands for some keywords of the public one."""

    type: type
    names: tuple[str, ...]
    required: bool
    others: tuple[str, ...] = ()  # fields that are parameters of the function itself

    @classmethod
    def of(cls, annotation: Any) -> _Group | None:
        notes: Sequence[Any] = ()
        if get_origin(annotation) is Annotated:
            annotation, *notes = get_args(annotation)
        if not getattr(annotation, "__module__", "").startswith(_GROUPS):
            return None
        described = described_fields(annotation)
        names = tuple(described)
        for note in notes:
            if isinstance(note, Only):
                names = note.names
            elif isinstance(note, Without):
                names = tuple(name for name in names if name not in note.names)
        return cls(annotation, names, REQUIRED in notes)

    def without(self, names: Container[str]) -> _Group:
        """Return the group without some of its keywords, which the function has itself."""
        kept = tuple(name for name in self.names if name not in names)
        others = tuple(name for name in described_fields(self.type) if name in names)
        return replace(self, names=kept, others=others)

    def parameters(self) -> Iterator[inspect.Parameter]:
        by_name = {field.name: field for field in fields(self.type)}
        described = described_fields(self.type)
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

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise RequestError if a keyword has a value that its description does not allow."""
        error = getattr(self.type, "error", RequestError)
        types = {field.name: str(field.type) for field in fields(self.type)}
        for name, about in described_fields(self.type).items():
            if name not in self.names or name not in given:
                continue
            if fault := about.fault(types[name], given[name]):
                raise error(f"Invalid value for {name}: {fault}")

    def flags(self) -> Iterator[tuple[str, str]]:
        """Return each keyword with its option as it is typed."""
        described = described_fields(self.type)
        for name in self.names:
            long = (flag for flag in described[name].flags if flag.startswith("--"))
            yield name, next(long, spell_option(name))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Return each keyword with its line of the docstring."""
        described = described_fields(self.type)
        for name in self.names:
            about = described[name]
            text = about.python or about.help[:1].lower() + about.help[1:]
            line = textwrap.fill(
                f"{name}: {text}",
                _WIDTH,
                initial_indent=" " * 4,
                subsequent_indent=" " * 8,
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield name, line

    def of_values(self, given: Mapping[str, Any]) -> Any:
        """Return the group of the keywords that are given."""
        names = (*self.names, *self.others)
        return self.type(**{name: given[name] for name in names if name in given})


@dataclass(frozen=True)
class Handler:
    """The function of a verb for one kind of subject; ``hints`` are for options it refuses."""

    function: Any
    hints: Mapping[str, str]

    @property
    def options(self) -> Mapping[str, str]:
        """The options as they are typed, by keyword."""
        options: Mapping[str, str] = self.function.options
        return options


# By the verb, which is the name of the public function, and the kind of subject.
HANDLERS: dict[tuple[str, str], Handler] = {}


@dataclass(frozen=True)
class Checked:
    """A call of a public function whose options are checked and that has not run.

    Example:
        >>> import hookscope
        >>> hookscope.capture.checked("resnet18", layers="fc").request.layers.layers
        ('fc',)
    """

    function: Callable[..., Any]
    values: Mapping[str, Any]
    kind: str = MODELS

    @property
    def request(self) -> Request:
        """The request of the call."""
        request: Request = self.values[REQUEST]
        return request

    def __call__(self, **more: Any) -> Any:
        """Run the function, with ``more`` parameters that are no options, such as ``progress``."""
        bound = inspect.BoundArguments(
            inspect.signature(self.function),
            {**self.values, **more},
        )
        return self.function(*bound.args, **bound.kwargs)


def public(function: F) -> Any:
    """Return the public function of one that takes groups of options.

    Its keywords are the fields of the groups, which are made, and so checked, in the order of the
    parameters. A parameter ``request`` is the ``Request`` that they make; a group may check it by
    ``check_request``. ``function.checked(...)`` makes the groups and does not run.

    Example:
        >>> from hookscope.specs.run_options import RunOptions
        >>> @public
        ... def double(run: Annotated[RunOptions, Only("seed")], *, times: int = 2) -> int:
        ...     \"\"\"Return a multiple of the seed.\"\"\"
        ...     return run.seed * times
        >>> double(seed=3), list(inspect.signature(double).parameters)
        (6, ['seed', 'times'])
    """
    made = _flat(function)
    made.settings = {
        name: described_fields(group.type)[name] for group in made.groups for name in group.names
    }
    lines = {name: line for group in made.groups for name, line in group.lines()}
    made.__doc__ = _documented(function.__doc__ or "", made.keywords, lines)
    return made


def _flat(function: F) -> Any:
    """Return a function of flat keywords, which makes the groups of another one."""
    written = inspect.signature(function)
    annotated = {
        name: None if name == REQUEST else _Group.of(_hint(function, name))
        for name in written.parameters
    }
    own = [name for name, group in annotated.items() if group is None and name != REQUEST]
    groups = {name: group and group.without(own) for name, group in annotated.items()}
    flat: list[inspect.Parameter] = []
    for name, parameter in written.parameters.items():
        group = groups[name]
        if name != REQUEST:
            flat += [parameter] if group is None else group.parameters()
    flat.sort(key=lambda parameter: parameter.kind)
    signature = written.replace(parameters=flat)

    verb = function.__name__

    def checked(*args: Any, **keywords: Any) -> Checked:
        try:
            given = signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{verb}() {error}") from None
        if not made.find_subject:
            return check_values(given)
        subject = made.find_subject(given)
        if (verb, subject.kind) in HANDLERS:
            for name in [name for name in made.options if name in given]:
                if not _is_default(given[name], signature.parameters[name].default):
                    check_accepted(made, name, subject)
        return checked_of(subject.kind, given)

    def checked_of(kind: str, given: Mapping[str, Any]) -> Checked:
        """Check those values that apply to a kind of subject."""
        handler = HANDLERS.get((verb, kind))
        if handler is None:
            return check_values(given)
        taken = {name: given[name] for name in handler.function.keywords if name in given}
        job: Checked = handler.function.check_values(taken)
        return replace(job, kind=kind)

    def check_values(given: Mapping[str, Any]) -> Checked:
        for group in made.groups:  # each value by itself, before what they ask for together
            group.check(given)
        values = {
            name: given[name] if group is None else group.of_values(given)
            for name, group in groups.items()
            if group is not None or name in given
        }
        if REQUEST in written.parameters:
            request = values[REQUEST] = Request.of(verb, values.values())
            for group in list(values.values()):
                if hasattr(group, "check_request"):
                    group.check_request(request)
        return Checked(function, values, MODELS if made.takes_models else "")

    def flat_function(*args: Any, **keywords: Any) -> Any:
        return checked(*args, **keywords)()

    # With the globals of the written function, so that its module owns it and doctest runs its
    # example.
    made: Any = FunctionType(
        flat_function.__code__,
        function.__globals__,
        function.__name__,
        closure=flat_function.__closure__,
    )
    functools.update_wrapper(made, function)
    del made.__wrapped__
    made.__signature__ = signature
    made.checked, made.checked_of, made.find_subject = checked, checked_of, None
    made.check_values = check_values
    made.takes_models, made.keywords = True, list(signature.parameters)
    made.groups = [group for group in groups.values() if group is not None]
    made.options = {name: flag for group in made.groups for name, flag in group.flags()}
    return made


def handles(function: Any, kind: str, /, **hints: str) -> Callable[[F], F]:
    """Mark what a public function does for a kind of subject; ``hints`` are for other options."""

    def register(handler: F) -> F:
        HANDLERS[function.__name__, kind] = Handler(_flat(handler), hints)
        return handler

    return register


def check_accepted(function: Any, name: str, subject: Subject) -> None:
    """Raise RequestError if an option does not apply to a kind of subject."""
    verb = function.__name__
    handler = HANDLERS[verb, subject.kind]
    if name in handler.options:
        return
    kinds = [kind for each, kind in HANDLERS if each == verb and kind != MODEL_AND_WEIGHTS]
    others = [kind for kind in kinds if name in HANDLERS[verb, kind].options]
    listed = " and ".join([MODELS] * function.takes_models + others)
    accepted = ", ".join(handler.options.values())
    takes = f"{subject.kind.capitalize()} take {accepted}." if accepted else ""
    raise RequestError(
        f"{function.options.get(name, spell_option(name))} is for {listed}, and {subject.label}.",
        f"Leave it out. {handler.hints.get(name, takes)}".rstrip(),
    )


def _hint(function: Callable[..., Any], name: str) -> Any:
    """Return the type of a parameter; None if it is imported for type checkers alone."""
    annotation = function.__annotations__.get(name)
    try:
        return eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation
    except NameError:
        return None


def _documented(text: str, names: Sequence[str], lines: Mapping[str, str]) -> str:
    """Add the lines of the groups to a docstring, under ``Args``, in the order of the names."""
    text = inspect.cleandoc(text)
    before, args, rest = text.partition("\nArgs:\n")
    if args:
        own, _, rest = rest.partition("\n\n")
        starts = [found.start() for found in _ARGS_LINE.finditer(own)]
        written = [own[i:j].rstrip() for i, j in zip(starts, [*starts[1:], None], strict=True)]
        lines = {**lines, **{line.partition(":")[0].strip(): line for line in written}}
    elif section := re.search(r"\n(Returns|Raises|Example):\n", text):
        before, rest = text[: section.start()], text[section.start() :]
    shown = "\n".join(lines[name] for name in sorted(lines, key=names.index))
    rest = rest.strip("\n")
    return f"{before}\nArgs:\n{shown}\n" + (f"\n{rest}" if rest else "")
