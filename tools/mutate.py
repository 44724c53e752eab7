"""Mutation tests: ``python -m tools.mutate`` breaks the code in small ways and runs the tests.

Each mutant is one small change of one function. The tests of its package should fail with it; one
that no test notices is listed. mutmut makes the mutants and runs them, each in a forked process.
``tools/mutate_packages.toml`` says which files belong to a package and which quick tests are run
for it, ``tools/mutate_equivalent.toml`` which mutants change no behaviour, and why.

    python -m tools.mutate                  every package, from the start
    python -m tools.mutate losses storing   these packages
    python -m tools.mutate losses --every 4 one mutant in four, the same ones each time
    python -m tools.mutate --again losses   only those that no test noticed, with the same --every
    python -m tools.mutate --report         the table of what has been run

A run leaves its mutants and results in ``build/mutate/PACKAGE``. After a change of the package's
tests in ``mutate_packages.toml``, mutmut forgets the earlier results: ``--again`` still runs those
that no test noticed, and the table then has no others.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parent.parent
BUILD = REPO / "build" / "mutate"
PACKAGES = REPO / "tools" / "mutate_packages.toml"
EQUIVALENT = REPO / "tools" / "mutate_equivalent.toml"

SHARE = 0.95  # of the mutants that are not equivalent, the tests of a package notice

# mutmut leaves decorated functions alone. These decorators work on its stand-in for a function.
SAFE_DECORATORS = {"property", "cached_property", "contextmanager", "no_grad", "cache"}
# A string of one word may be a key or a name. With spaces it is the text of a message.
KEY = re.compile(r"[\w.:/~-]+")


@dataclass(frozen=True)
class Mutant:
    """A mutant and what came of it: ``killed``, ``survived``, ``no tests``, ``timeout``, ..."""

    name: str
    file: str
    status: str
    change: str


def main() -> int:
    """Run the packages named on the command line, print the table; return 1 below the share."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="all if none is named")
    parser.add_argument("--again", action="store_true", help="only those not killed the last time")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one mutant in N")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    packages = tomllib.loads(PACKAGES.read_text(encoding="utf-8"))
    if args.inside:
        run_inside(args.inside, packages[args.inside], args.again, args.every)
        return 0
    unknown = set(args.packages) - set(packages)
    if unknown:
        parser.error(f"no package {', '.join(sorted(unknown))}: choose from {', '.join(packages)}")
    chosen = args.packages or list(packages)
    if not args.report:
        for name in chosen:
            run(name, args.again, args.every)
    return report([name for name in chosen if (BUILD / name / "mutants").is_dir()], packages)


def run(name: str, again: bool, every: int) -> None:
    """Run one package in a process of its own, with one thread: forked processes share no pools."""
    folder = BUILD / name
    if not again:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for path in REPO.iterdir():
        link = folder / path.name
        if not path.name.startswith(".") and path.name != "build" and not link.is_symlink():
            link.symlink_to(path)
    command = [sys.executable, "-m", "tools.mutate", "--inside", name, "--every", str(every)]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    print(f"{name}:", flush=True)
    subprocess.run(
        [*command, *(["--again"] if again else [])], cwd=REPO, env=os.environ | threads, check=True
    )


def run_inside(name: str, package: dict[str, list[str]], again: bool, every: int) -> None:
    """Let mutmut make the mutants of a package and run them."""
    os.chdir(BUILD / name)
    configure(package)
    adapt(every)
    from mutmut import __main__ as mutmut

    names = [m.name for m in read(package) if m.status != "killed"] if again else []
    if again and not names:
        return
    mutmut._run(names, 1)


def configure(package: dict[str, list[str]]) -> None:
    """Set what mutmut would read from ``[tool.mutmut]``, which has no packages."""
    from mutmut import configuration

    settings = configuration._load_config()
    settings.source_paths = [Path("hookscope")]
    settings.resolved_mutated_source_paths = [Path.cwd() / "mutants" / "hookscope"]
    settings.only_mutate = package["files"]
    settings.also_copy = [
        Path(path.name)
        for path in Path.cwd().iterdir()
        if path.name not in ("hookscope", "mutants")
    ]
    settings.pytest_add_cli_args_test_selection = package["tests"]
    settings.pytest_add_cli_args = ["-p", "no:cacheprovider", "-m", "not slow and not exhaustive"]
    settings.use_git_change_detection = False
    settings.on_dependency_change = "ignore"
    settings.timeout_constant = 5.0
    settings.timeout_multiplier = 5.0
    configuration._config = settings


def adapt(every: int) -> None:
    """Leave out what is text for people, take in the decorated functions, and one mutant in N."""
    import libcst as cst
    from mutmut.mutation import file_mutation, mutators

    strings = mutators.operator_string
    skips = file_mutation.MutationVisitor._skip_node_and_children
    creates = file_mutation.create_mutations
    arranges = file_mutation.function_trampoline_arrangement

    def one_word(node: Any) -> Iterator[Any]:
        if isinstance(node, cst.SimpleString) and KEY.fullmatch(str(node.raw_value)):
            yield from list(strings(node))[:1]

    def skip(self: Any, node: Any) -> bool:
        if isinstance(node, cst.Raise) or _makes_message(node):
            return True
        if isinstance(node, cst.FunctionDef) and _only_safe_decorators(node):
            return False
        return bool(skips(self, node))

    def arrange(function: Any, mutants: Any, class_name: str | None) -> Any:
        declared, nodes, assigned, names = arranges(function, mutants, class_name)
        if _only_safe_decorators(function):  # the stand-in keeps them, what it calls goes without
            nodes = [nodes[0], *(node.with_changes(decorators=()) for node in nodes[1:])]
        return declared, nodes, assigned, names

    def sample(filename: str, *rest: Any) -> Any:
        module, mutations, *ignored = creates(filename, *rest)
        chosen = [m for i, m in enumerate(mutations) if _draw(f"{filename} {i}") % every == 0]
        return module, chosen, *ignored

    place = mutators.mutation_operators.index((cst.BaseString, strings))
    mutators.mutation_operators[place] = (cst.BaseString, one_word)
    file_mutation.MutationVisitor._skip_node_and_children = skip
    file_mutation.function_trampoline_arrangement = arrange
    file_mutation.create_mutations = sample


def _draw(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def _makes_message(node: Any) -> bool:
    """Whether a node is a call that logs, or that makes an error of hookscope's."""
    import libcst.matchers as m

    error = m.Name(m.MatchIfTrue(re.compile(r"_?[Mm]isfit$|[A-Z]\w+(Error|Failed)$").match))
    return bool(m.matches(node, m.Call(func=m.Attribute(value=m.Name("log")) | error)))


def _only_safe_decorators(function: Any) -> bool:
    import libcst as cst

    names = []
    for decorator in function.decorators:
        node = decorator.decorator
        node = node.func if isinstance(node, cst.Call) else node
        node = node.attr if isinstance(node, cst.Attribute) else node
        names.append(node.value if isinstance(node, cst.Name) else "")
    return bool(names) and set(names) <= SAFE_DECORATORS


def read(package: dict[str, list[str]]) -> list[Mutant]:
    """Return the mutants of the last run in the working folder."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    mutants = []
    for file in sorted(path for glob in package["files"] for path in Path().glob(glob)):
        data = SourceFileMutationData(path=file)
        data.load()
        for name, code in data.exit_code_by_key.items():
            function = name.rpartition(".")[2].partition("__mutmut_")[0].removeprefix("x_")
            if f"{file}:{function}" in package.get("at_import", ()):
                continue
            status = status_by_exit_code[code]
            status = "killed" if status in ("timeout", "segfault") else status
            change = "" if status == "killed" else _change(get_diff_for_mutant(name, path=file))
            mutants.append(Mutant(name, str(file), status, change))
    return mutants


def _change(diff: str) -> str:
    """One line that names a mutation by its text, which stays the same when other lines move."""
    lines = diff.splitlines()[2:]
    sides = (" ".join(x[1:].strip() for x in lines if x.startswith(sign)) for sign in "-+")
    return " => ".join(sides)


def changes_nothing(mutant: Mutant, equivalent: dict[str, Any]) -> bool:
    """Whether a mutant is listed, or differs only in what is listed for every file."""
    sides = mutant.change.split(" => ")
    for entry in equivalent.get("everywhere", ()):
        sides = [re.sub(entry["part"], "", side) for side in sides]
    plain = {side.replace(", )", ")") for side in sides}
    return len(plain) == 1 or mutant.change in equivalent.get(mutant.file, {})


def report(names: Iterable[str], packages: dict[str, dict[str, list[str]]]) -> int:
    """Print the mutants that no test noticed, then the table; return 1 if they are too many."""
    equivalent = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    rows = []
    enough = True
    for name in names:
        os.chdir(BUILD / name)
        configure(packages[name])
        every = read(packages[name])
        mutants = [m for m in every if m.status != "not checked"]  # of a run that was cut short
        alive = [m for m in mutants if m.status != "killed"]
        same = [m for m in alive if changes_nothing(m, equivalent)]
        survived = [m for m in alive if m not in same]
        for mutant in survived:
            print(f"{mutant.file}: {mutant.name.rpartition('.')[2]} ({mutant.status})")
            print(f"    {mutant.change}")
        killed, counted = len(mutants) - len(alive), len(mutants) - len(same)
        share = f"{killed / counted:.1%}" if counted else "-"
        rows.append((name, len(mutants), killed, len(same), len(survived), share))
        enough = enough and killed >= SHARE * counted
    print(f"\n{'package':12} {'mutants':>8} {'killed':>8} {'same':>8} {'survived':>8} {'share':>8}")
    for row in rows:
        print(f"{row[0]:12} {row[1]:8} {row[2]:8} {row[3]:8} {row[4]:8} {row[5]:>8}")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
