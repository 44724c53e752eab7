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

from hookscope.errors import HookscopeError, RequestError
from hookscope.specs.request import Request
from hookscope.specs.settings import Setting, described_fields, spell_option
from hookscope.specs.subject_kinds import MODELS, PAIRS, STRUCTURES, Subject

F = TypeVar("F", bound=Callable[..., Any])

REQUEST = "request"
MODEL = "model"  # the only field that may be given by position
_GROUPS = ("hookscope.specs.", "hookscope.commands.")  # where groups of options are declared
_WIDTH = 96
# A whole command, or an option with the word after it, which may be its value.
_COMMAND_OR_OPTION = re.compile(
    r"hookscope .*|(?<![\w-])(--[a-z][a-z0-9-]*)"
    r"""(?: (?=(["'])|([A-Z]\w*\b(?!=)))| ([\w/~](?:[\w./:,+-]*\w)?))?"""
)
_NUMBER = re.compile(r"[\d.]+(e[+-]?\d+)?")
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

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the keywords; RequestError if a description does not allow one."""
        error = getattr(self.type, "error", RequestError)
        types = {field.name: str(field.type) for field in fields(self.type)}
        values = {}
        for name, about in described_fields(self.type).items():
            if name in self.names and name in given:
                try:
                    values[name] = about.read(types[name], given[name])
                except ValueError as fault:
                    raise error(f"Invalid value for {name}: {fault}") from None
        return values

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
        """Run the function, with ``more`` parameters that are not options, such as ``progress``."""
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
    made = _FlatFunction(function).made
    made.settings = {
        name: described_fields(group.type)[name] for group in made.groups for name in group.names
    }
    lines = {name: line for group in made.groups for name, line in group.lines()}
    made.__doc__ = _documented(function.__doc__ or "", made.keywords, lines)
    return made


class _FlatFunction:
    """A function of flat keywords, ``made``, which makes the groups that ``function`` takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.verb = function, function.__name__
        self.written = inspect.signature(function)
        of_names = {
            name: None if name == REQUEST else _Group.of(_hint(function, name))
            for name in self.written.parameters
        }
        own = [name for name, group in of_names.items() if group is None]
        self.groups = {name: group and group.without(own) for name, group in of_names.items()}
        self.signature = self._flat_signature()
        self.made = self._made()

    def _flat_signature(self) -> inspect.Signature:
        flat: list[inspect.Parameter] = []
        for name, parameter in self.written.parameters.items():
            group = self.groups[name]
            if name != REQUEST:
                flat += [parameter] if group is None else group.parameters()
        flat.sort(key=lambda parameter: parameter.kind)
        return self.written.replace(parameters=flat)

    def _made(self) -> Any:
        def flat_function(*args: Any, **keywords: Any) -> Any:
            return run(*args, **keywords)

        run, function = self.run, self.function
        # With the globals of the written function, so that its module owns it and doctest runs its
        # example.
        made: Any = FunctionType(
            flat_function.__code__,
            getattr(function, "__globals__"),  # noqa: B009 - a Callable has none for mypy
            self.verb,
            closure=flat_function.__closure__,
        )
        functools.update_wrapper(made, function)
        del made.__wrapped__
        made.__signature__ = self.signature
        made.checked, made.checked_of, made.find_subject = self.checked, self.checked_of, None
        made.check_values = self.check_values
        made.takes_models, made.keywords = True, list(self.signature.parameters)
        made.groups = [group for group in self.groups.values() if group is not None]
        made.options = {name: flag for group in made.groups for name, flag in group.flags()}
        return made

    def run(self, *args: Any, **keywords: Any) -> Any:
        """Check a call of Python, and run it; errors name keywords."""
        try:
            return self.checked(*args, **keywords)()
        except HookscopeError as error:
            error.respell(functools.partial(in_keywords, function=self.made))
            raise

    def checked(self, *args: Any, **keywords: Any) -> Checked:
        """Check the values of a call; one that does not apply to its subject is an error."""
        try:
            given = self.signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{self.verb}() {error}") from None
        if not self.made.find_subject:
            return self.check_values(given)
        subject = self.made.find_subject(given)
        if (self.verb, subject.kind) in HANDLERS:
            # A wrong value is named first, as on the command line. A generator can be read once.
            plain = {name: x for name, x in given.items() if isinstance(x, str | int | float)}
            for group in self.made.groups:
                group.read(plain)
            for name in [name for name in self.made.options if name in given and name != MODEL]:
                if not _is_default(given[name], self.signature.parameters[name].default):
                    check_accepted(self.made, name, subject)
        return self.checked_of(subject.kind, given)

    def checked_of(self, kind: str, given: Mapping[str, Any]) -> Checked:
        """Check those values that apply to a kind of subject."""
        handler = HANDLERS.get((self.verb, kind))
        if handler is None:
            return self.check_values(given)
        taken = {name: given[name] for name in handler.function.keywords if name in given}
        job: Checked = handler.function.check_values(taken)
        return replace(job, kind=kind)

    def check_values(self, given: Mapping[str, Any]) -> Checked:
        """Read each value by itself, and make the groups, which check them together."""
        read = dict(given)
        for group in self.made.groups:
            read |= group.read(given)
        values = {
            name: read[name] if group is None else group.of_values(read)
            for name, group in self.groups.items()
            if group is not None or name in read
        }
        if REQUEST in self.written.parameters:
            request = values[REQUEST] = Request.of(self.verb, values.values())
            for group in list(values.values()):
                if hasattr(group, "check_request"):
                    group.check_request(request)
        return Checked(self.function, values, MODELS if self.made.takes_models else "")


def in_keywords(text: str, function: Any) -> str:
    """Name the keywords of a function in a text, not its options; leave whole commands."""
    names: dict[str, str]
    names = {function.options.get(name, spell_option(name)): name for name in function.keywords}
    parameters = inspect.signature(function).parameters

    def is_value(name: str, word: str) -> bool:
        about = function.settings.get(name, Setting())
        return not word.isalpha() or word in (*about.choices, parameters[name].default)

    def spelled(found: re.Match[str]) -> str:
        option, word = found[1] or "", found[4] or ""
        after = f" {word}" if word else ""
        if name := names.get(option):
            if word and is_value(name, word):
                return f"{name}={word}" if _NUMBER.fullmatch(word) else f'{name}="{word}"'
            return f"{name}=" if found[2] or found[3] else name + after
        negative = option.replace("--no-", "--", 1)
        return f"{names[negative]}=False{after}" if negative in names else found[0]

    return _COMMAND_OR_OPTION.sub(spelled, text)


def handles(function: Any, kind: str, /, **hints: str) -> Callable[[F], F]:
    """Mark what a public function does for a kind of subject; ``hints`` are for other options."""

    def register(handler: F) -> F:
        HANDLERS[function.__name__, kind] = Handler(_FlatFunction(handler).made, hints)
        return handler

    return register


def check_accepted(function: Any, name: str, subject: Subject) -> None:
    """Raise RequestError if an option does not apply to a kind of subject."""
    verb = function.__name__
    handler = HANDLERS[verb, subject.kind]
    if name in handler.options:
        return
    of_their_own = [kind for each, kind in HANDLERS if each == verb]
    kinds = [kind for kind in of_their_own if kind not in (*PAIRS, STRUCTURES)]
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
