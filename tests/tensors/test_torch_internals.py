"""The private names of PyTorch stand in one file, and the installed release has them."""

from __future__ import annotations

import ast
import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import dataloader

from hookscope.errors import EnvironmentFault
from hookscope.tensors import torch_internals
from hookscope.tensors.torch_internals import ATTRIBUTES, SCRIPTED, SCRIPTED_ATTRIBUTES

HOME = "tensors/torch_internals.py"
SCRIPTS = "sources/torchscript/private.py"

# Private attributes of other packages' objects and of Python's.
OTHERS = {
    *("_asdict", "_at_fork_reinit", "_exit", "_getframe", "_replace"),  # of Python, some documented
    *("_args_from_interpreter_flags", "_run_module_as_main"),  # of subprocess and runpy
    "_render_traceback_",  # of IPython
    *("_attn_implementation", "_from_config", "_hf_hook", "_no_split_modules"),
    "_skip_keys_device_placement",
    "_ortvalue",  # of onnxruntime
    "_resolve_features",  # of datasets
}


def is_private(dotted: str) -> bool:
    return any(re.match(r"_(?!_)", part) for part in dotted.split("."))


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of each private name that is reached from ``torch``."""
    roots: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    roots[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    if is_private(alias.name):
                        yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                roots[alias.asname or alias.name] = name = f"{node.module}.{alias.name}"
                if is_private(name):
                    yield node.lineno, name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            root, _, rest = text.partition(".")
            if re.fullmatch(r"[\w.]+", text) and root in roots and is_private(rest):
                yield node.lineno, f"{roots[root]}.{rest}"


@pytest.fixture(scope="module")
def package(repo: Path) -> dict[str, ast.Module]:
    root = repo / "hookscope"
    return {
        file.relative_to(root).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(root.rglob("*.py"))
    }


def test_no_other_file_names_a_private_part_of_torch(package: dict[str, ast.Module]) -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, tree in package.items()
        if path != HOME
        for line, name in private_names(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._C._is_tracing()",
        "from torch._ops import OpOverload",
        "from torch import _dynamo as d",
        "import torch._dynamo",
        "import torch.utils._pytree as pytree",
        "from torch import nn\nnn.Module._call_impl",
        "from torch.nn.modules import module as m\nm._global_forward_hooks",
    ],
)
def test_the_scan_sees_a_private_name(text: str) -> None:
    assert len(list(private_names(ast.parse(text)))) >= 1


def nodes(package: dict[str, ast.Module], kind: type, *paths: str) -> Iterator[Any]:
    """Every node of a kind in some files, or in all."""
    for path in paths or package:
        yield from (node for node in ast.walk(package[path]) if isinstance(node, kind))


def calls(
    package: dict[str, ast.Module], names: tuple[str, ...], *paths: str
) -> Iterator[ast.Call]:
    for node in nodes(package, ast.Call, *paths):
        if isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def test_the_installed_torch_has_each_name_or_the_name_has_a_fallback(
    package: dict[str, ast.Module],
) -> None:
    names = {
        node.args[0].value: len(node.args) > 1  # whether it has a fallback
        for node in calls(package, ("_found",), HOME)
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(names) > 20
    absent = [name for name in names if torch_internals._found(name, None) is None]
    assert [name for name in absent if not names[name]] == []
    assert set(absent) <= {
        "torch._C._remove_obj_from_tls",  # since torch 2.12 or 2.13
        "torch._C._autograd._top_saved_tensors_default_hooks",  # since torch 2.7 or later
        "torch.export.pt2_archive.PT2ArchiveReader",
    }


def test_each_name_of_the_file_is_used(package: dict[str, ast.Module]) -> None:
    given = {
        target.id
        for node in package[HOME].body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    }
    imports = nodes(package, ast.ImportFrom)
    home = [node for node in imports if node.module == "hookscope.tensors.torch_internals"]
    used = {alias.name for node in home for alias in node.names}
    used |= {
        node.attr
        for node in nodes(package, ast.Attribute)
        if ast.unparse(node.value) == "torch_internals"
    }
    assert given - used == {"ATTRIBUTES", "SCRIPTED", "SCRIPTED_ATTRIBUTES"}


def test_what_is_used_for_scripted_models_is_listed_and_exists(
    package: dict[str, ast.Module],
) -> None:
    attributes = nodes(package, ast.Attribute, SCRIPTS)
    used = {node.attr for node in attributes if ast.unparse(node.value) == "_C"}
    numbers = {"BoolType", "IntType", "FloatType", "ComplexType"}  # by ``getattr``
    assert used | numbers == set(SCRIPTED)
    assert [name for name in SCRIPTED if not hasattr(torch._C, name)] == []


def own_names(package: dict[str, ast.Module]) -> set[str]:
    """The names of functions, classes, arguments and variables of hookscope."""
    found = {node.name for node in nodes(package, ast.FunctionDef | ast.ClassDef)}
    for node in nodes(package, ast.Name | ast.Attribute):
        if isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif ast.unparse(node.value) == "self":
                found.add(node.attr)
    return found


def test_private_attributes_of_torchs_objects_are_listed(package: dict[str, ast.Module]) -> None:
    used = {
        node.attr
        for path in package
        for node in nodes(package, ast.Attribute, path)
        if is_private(node.attr)
        and not (path in (HOME, SCRIPTS) and ast.unparse(node).startswith(("torch.", "_C.")))
    }
    used |= {
        node.args[1].value
        for node in calls(package, ("getattr", "hasattr", "setattr"))
        if isinstance(node.args[1], ast.Constant) and is_private(str(node.args[1].value))
    }
    listed = {*SCRIPTED_ATTRIBUTES, *(name for names in ATTRIBUTES.values() for name in names)}
    assert used - own_names(package) - OTHERS <= listed <= used


class Twice(torch.autograd.Function):
    """A function of a user's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Double."""
        return x * 2


POWER, FUNCTION, ITERATOR = (
    next(kind for kind in ATTRIBUTES if kind.endswith(ending))
    for ending in (" power", ".Function", ".DataLoader")
)


def samples() -> dict[str, Any]:
    """Each class of ATTRIBUTES, or an object where only that has the attributes."""
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    tensor = torch.ones(2, requires_grad=True)
    return {
        "torch.Tensor": torch.Tensor,
        "torch.UntypedStorage": tensor.untyped_storage(),
        "torch.nn.Module": nn.Linear(2, 2),
        "torch.autograd.graph.Node": (tensor * 2).grad_fn,
        POWER: (tensor**2).grad_fn,
        FUNCTION: type(Twice.apply(tensor).grad_fn),
        "torch.amp.GradScaler": torch.amp.GradScaler("cpu"),
        "torch.export.ExportedProgram": program,
        "torch._ops.OpOverload": torch.ops.aten.relu.default,
        ITERATOR: dataloader._MultiProcessingDataLoaderIter,
    }


@pytest.mark.filterwarnings("ignore:.*torch.jit.load")
def test_the_installed_torchs_objects_have_the_private_attributes(repo: Path) -> None:
    objects = samples()
    assert objects.keys() == ATTRIBUTES.keys()
    for kind, names in ATTRIBUTES.items():
        assert [name for name in names if not hasattr(objects[kind], name)] == [], kind
    scripted = torch.jit.load(repo / "sample_models/digits_scripted.pt")
    assert hasattr(scripted, "_c")
    inner = set(SCRIPTED_ATTRIBUTES) - {"_c"}
    assert [name for name in inner if not hasattr(scripted._c, name)] == []


def test_a_name_that_a_release_does_not_have_is_an_error_that_names_both_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("torch._C._not_there", "torch._not_there.at_all"):
        stand_in = torch_internals._found(name)
        with pytest.raises(EnvironmentFault) as caught:
            stand_in(1)
        assert str(caught.value).startswith(f"torch {torch.__version__} has no {name}, ")
        assert torch_internals._found(name, 3) == 3
    assert not hasattr(torch_internals.torch_c, "Nothing")  # not listed, so nobody needs it
    monkeypatch.setattr(torch_internals, "SCRIPTED", ("Nothing",))
    with pytest.raises(EnvironmentFault, match=re.escape("has no torch._C.Nothing")):
        _ = torch_internals.torch_c.Nothing


# The object of a thread, in the way that suits the installed release.


class Value:
    """What a thread holds."""


@pytest.fixture
def state() -> Any:
    return torch_internals.thread_object("hookscope.test")


def in_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_each_thread_has_its_own_object_and_the_last_one_set_counts(state) -> None:
    assert state.get() is None
    first, second = Value(), Value()
    state.set(first)
    state.set(second)
    seen: list[object] = []

    def work() -> None:
        seen.append(state.get())
        state.set(first)
        seen.append(state.get())
        state.remove()
        seen.append(state.get())

    in_threads(1, work)
    assert seen == [None, first, None]
    assert state.get() is second
    state.remove()
    assert state.get() is None


def test_an_object_is_freed_once_and_no_later_than_its_thread(state) -> None:
    held: list[weakref.ref[Value]] = []

    def work() -> None:
        for _ in range(200):
            value = Value()
            held.append(weakref.ref(value))
            state.set(value)
            assert state.get() is value
            del value
            gc.collect(0)
            assert state.get() is held[-1]()
            assert held[-1]() is not None
        state.remove()

    work()  # PyTorch passes on what the main thread holds in every release
    in_threads(4, work)
    gc.collect()
    assert len(held) == 1000
    assert [one for one in held if one() is not None] == []


class Nested(torch.autograd.Function):
    """Backward passes within each other; from the 60th on a pool of threads runs them.

    It is what a backward pass on a GPU is too: in threads that Python has not started.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, innermost: Any) -> torch.Tensor:
        ctx.depth, ctx.innermost = depth, innermost
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if not ctx.depth:
            ctx.innermost()
            return grads[0], None, None
        with torch.enable_grad():
            inner = torch.ones(2, requires_grad=True)
            Nested.apply(inner, ctx.depth - 1, ctx.innermost).sum().backward()
        return grads[0], None, None


@pytest.mark.parametrize("main", [True, False])
def test_a_thread_of_autograd_has_the_object_of_the_thread_that_called_backward(
    state, main: bool
) -> None:
    found: list[object] = []
    value = Value()

    def work() -> None:
        state.set(value)
        x = torch.ones(2, requires_grad=True)
        innermost = lambda: found.extend([state.get(), threading.get_ident()])  # noqa: E731
        Nested.apply(x, 80, innermost).sum().backward()
        found.append(threading.get_ident())
        state.remove()

    if main:
        work()
    else:
        in_threads(1, work)
    assert found[0] is value
    assert found[1] != found[2]
    assert state.get() is None


def test_another_thread_in_a_backward_pass_has_no_object(state) -> None:
    found: list[object] = []
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        state.set(Value())
        held.set()
        done.wait(60)
        state.remove()

    def backward() -> None:
        x = torch.ones(2, requires_grad=True)
        Nested.apply(x, 1, lambda: found.append(state.get())).sum().backward()

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(60)
    in_threads(1, backward)
    backward()
    done.set()
    holding.join()
    assert found == [None, None]
