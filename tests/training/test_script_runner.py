"""A script under ``hookscope run`` does what it does under ``python``, byte for byte."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from hookscope.training.script_runner import Program
from tests.training.oracle import OURS, Ending, both

posix = pytest.mark.skipif(os.name == "nt", reason="signals and forks of POSIX")

FACTS = '''
"""The docstring."""
from __future__ import annotations
import atexit, inspect, os, pickle, signal, sys, threading, time, warnings, zlib
names = list(globals())
level: undefined_name = 1

class Point:
    """Of this script."""
    def __init__(self, x): self.x = x
    def __reduce__(self): return Point, (self.x,)

def documented(a: undefined_name):
    return a + 1  # its source

print(names[:10], __name__, __file__, __package__, __cached__, __doc__)
print(__spec__, type(__loader__).__name__, __loader__.name, __loader__.path)
print(__annotations__, documented.__annotations__, type(__builtins__).__name__)
print(sys.argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.executable)
print(sys.modules["__main__"].__dict__ is globals(), Point.__module__)
print(inspect.getsource(documented), inspect.getsourcefile(Point), inspect.getdoc(Point))
print(pickle.loads(pickle.dumps(Point(3))).x, pickle.dumps(documented))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
print(sys.excepthook is sys.__excepthook__, sys.stdout is sys.__stdout__, sys.getrecursionlimit())
print([thread.name for thread in threading.enumerate()])
print([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], os.getcwd())
print(sorted(os.environ), zlib.crc32(repr(sorted(os.environ.items())).encode()))
print(warnings.filters)
if sys.platform == "linux":
    print(sorted(os.listdir("/proc/self/fd")))
print({"torch", "numpy", "rich", "multiprocessing", "random"} & set(sys.modules))
print(hasattr(sys, "last_value"), sys.exc_info(), sys.gettrace(), sys.getprofile())
print("read:", sys.stdin.read())

def late():
    time.sleep(0.05)
    print("thread", "__file__" in globals(), "__cached__" in globals(), documented(1))

atexit.register(lambda: print("atexit", "__file__" in globals(), documented(2)))
threading.Thread(target=late).start()
assert __debug__, "without -O"
if __name__ == "__main__":
    print("end")
'''


@pytest.fixture
def compare(tmp_path: Path, clean_environment: dict[str, str]):
    """Run ``work/SCRIPT`` with ``text`` both ways; return how it ends, which is the same."""
    folder = tmp_path / "work"
    folder.mkdir()

    def check(text: str | bytes, *words: str, name: str = "script.py", env=None, **more) -> Ending:
        content = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        plain, ours = both(words or (name,), folder, {**clean_environment, **(env or {})}, **more)
        assert ours == plain
        return plain

    return check


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        ([], {}),
        (["-O", "-u", "-W", "error::UserWarning", "-X", "utf8=0"], {"LC_ALL": "C"}),
        (["-P"] if sys.version_info >= (3, 11) else ["-s"], {"PYTHONIOENCODING": "ascii:replace"}),
    ],
    ids=["plain", "flags", "safe path"],
)
def test_what_a_script_sees_is_what_python_shows(compare, flags, env) -> None:
    words = ("sub/../sub/facts.py", "--epochs", "3", "--", "-m", "--every=1", "")
    ending = compare(FACTS, *words, name="sub/facts.py", flags=flags, env=env, stdin=b"a\r\nb")
    assert (ending.status, ending.stderr) == (0, b"")
    assert ending.stdout.splitlines()[-3:] == [b"end", b"thread False False 2", b"atexit False 3"]


ENDS = {
    "exit": "import sys; sys.exit(3)",
    "exit with text": "import sys; print('a'); sys.exit('text')",
    "exit with nothing": "import sys; sys.exit()",
    "exit with an object": "import sys; sys.exit({'a': 1})",
    "exit beyond 255": "import sys; sys.exit(-1)",
    "own exit": """
        class Stop(SystemExit):
            code = 9
        try:
            1 / 0
        finally:
            raise Stop
        """,
    "hard exit": "import os; print('lost', end=''); os._exit(7)",
    "no inherited future": "def f(x: undefined): pass",
    "chained": """
        def inner():
            try:
                {}['key']
            except KeyError as error:
                raise ValueError("bad") from error
        try:
            inner()
        except ValueError:
            undefined_name
        """,
    "interrupt": """
        import atexit, threading, time
        atexit.register(print, "atexit")
        threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
        raise KeyboardInterrupt
        """,
    "interrupt of a kind": "class Mine(KeyboardInterrupt): pass\nraise Mine('x')",
    "syntax error inside": "eval('1 +')",
    "import of itself": "import script\nprint(script.__name__)\nraise OSError(2, 'x', 'y')",
    "exception hook": """
        import sys
        def hook(kind, value, trace):
            sys.__excepthook__(kind, value, trace)
            print(trace is value.__traceback__ is sys.last_traceback, sys.last_value is value)
            print(sys.excepthook is hook, trace.tb_frame.f_code.co_name, __file__)
        sys.excepthook = hook
        def f(): raise ValueError("first")
        f()
        """,
    "failing hook": """
        import sys
        def hook(*_): raise TypeError("second")
        sys.excepthook = hook
        raise ValueError("first")
        """,
    "exiting hook": """
        import atexit, sys
        atexit.register(lambda: print("__file__" in globals()))
        sys.excepthook = lambda *_: sys.exit(5)
        raise ValueError("first")
        """,
    "no hook": "import sys; del sys.excepthook; raise ValueError('first')",
    "empty hook": "import sys; sys.excepthook = None; raise ValueError('first')",
    "exit and error in threads": """
        import sys, threading
        for work in (lambda: sys.exit(4), lambda: 1 / 0):
            thread = threading.Thread(target=work, name="worker")
            thread.start(); thread.join()
        print("end")
        """,
    "atexit": """
        import atexit, sys
        atexit.register(print, "first")
        atexit.register(lambda: 1 / 0)
        atexit.register(lambda: print(sys.excepthook is sys.__excepthook__, __file__))
        raise ValueError
        """,
    "destructors": """
        import sys
        class Last:
            def __del__(self): print("del", sys is None, __name__); 1 / 0
        kept = Last(); kept.self = kept
        last = Last()
        """,
    "warning": "import warnings\nwarnings.warn('careful')\nx = '\\d'\nprint(x is 'a')",
    "closed stdout": "import sys; sys.stdout.close(); raise ValueError('x')",
    "logging": """
        import logging, sys, traceback
        logging.basicConfig(level=0, format="%(pathname)s %(lineno)d %(funcName)s %(message)s")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("failed")
            traceback.print_exc()
        """,
    "children": """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, sys.path[:1])"],
              capture_output=True, text=True, env=None).stdout)
        sys.exit(subprocess.run([sys.executable, "-c", "raise SystemExit(6)"]).returncode)
        """,
}
if sys.version_info >= (3, 11):
    ENDS["group"] = "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])"

SIGNALS = {
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "Ctrl-C": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "own handler": """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"stopped {frame.f_lineno}"))
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    "alarm": "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(5)",
    "fork": """
        import os, sys
        print("once", flush=True)
        child = os.fork()
        if not child:
            raise ValueError("in the child")
        print(os.waitpid(child, 0)[1], flush=True)
        """,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_under_python(compare, end: str) -> None:
    compare(ENDS[end])


@posix
@pytest.mark.parametrize("end", SIGNALS)
def test_signals_and_forks_end_a_script_as_under_python(compare, end: str) -> None:
    compare(SIGNALS[end])


def test_the_order_of_both_streams_is_kept(compare) -> None:
    ending = compare(
        "import sys\nprint(1)\nprint(2, file=sys.stderr)\nprint(3)\n1 / 0", merged=True
    )
    assert ending.stdout.startswith(b"2\n1\n3\nTraceback")


def test_a_stream_keeps_its_handler_of_errors(compare) -> None:
    ending = compare("print('\u2713')", env={"PYTHONIOENCODING": "ascii"})
    assert b"UnicodeEncodeError" in ending.stderr


@posix
def test_streams_that_are_closed_stay_closed(tmp_path: Path, clean_environment) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; open('seen', 'a').write(f'{sys.stdout} {os.dup(0)}\\n')")
    for command in ((), OURS):
        shell = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, *command, script.name]
        subprocess.run(shell, cwd=tmp_path, env=clean_environment, check=True, timeout=300)
    plain, ours = (tmp_path / "seen").read_text().splitlines()
    assert ours == plain


@pytest.mark.sampled(2)
@pytest.mark.parametrize("end", ["chained", "interrupt", "exit with text", "exception hook"])
def test_a_script_ends_the_same_under_the_installed_command(compare, end: str) -> None:
    installed = "from hookscope.__main__ import main; import sys; sys.exit(main())"
    compare(ENDS[end], ours=("-c", installed, "run"))


# Texts that Python refuses, and texts with encodings and line ends that it reads.
TEXTS = [
    "def f(:\n",
    "if 1:\nx = 1\n",
    b"x = 1\n\0\n",
    b"x = '\xe9'\n",
    b"# -*- coding: unknown -*-\n",
    'x = """open\n',
    "(" * 300,
    "return 1\n",
    "from __future__ import braces\n",
    b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\nraise ValueError('\xe9')",
    b"\xef\xbb\xbfprint('BOM')\nraise ValueError",
    b"print('a')\r\nx = '''1\r\n2'''\r\nprint(repr(x))\r\n1 / 0\r\n",
    b"print('no newline at the end')\x0c",
    b"",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_a_text_is_read_and_refused_as_python_does(compare, number: int) -> None:
    ending = compare(TEXTS[number], "script.py", "argument")
    assert ending.status == 1 or number >= 9


WORKERS = """
    import concurrent.futures, multiprocessing, sys

    class Item:
        def __init__(self, value): self.value = value
        def __call__(self): return self.value

    def double(item):
        main = sys.modules["__main__"]
        name = __name__.replace("__mp_main__", "main").replace("__main__", "main")
        return Item((item.value * 2, "hookscope" in sys.modules, name, main.__name__, sys.argv[1:]))

    if __name__ == "__main__":
        context = multiprocessing.get_context("METHOD")
        with context.Pool(1) as pool:
            print(*(item() for item in pool.map(double, [Item(1), Item(2)])))
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            print(pool.submit(double, Item(3)).result()())
        print(sys.modules["__mp_main__"] is sys.modules["__main__"])
        process = context.Process(target=double)
        process.start(); process.join()
        sys.exit(process.exitcode)
    """


OF_WORKERS = {
    "spawn": ("spawn", ["script.py"], OURS),
    "forkserver": ("forkserver", ["-m", "script"], OURS),
    "spawn of a module": ("spawn", ["-m", "script"], OURS),
    "fork": ("fork", ["script.py"], OURS),
    "fork where multiprocessing was imported before": (
        "fork",
        ["script.py"],
        ("-c", "import multiprocessing; from hookscope.__main__ import main; main()", "run"),
    ),
}


@posix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", OF_WORKERS)
def test_workers_find_what_the_script_defines(compare, how: str) -> None:
    method, words, ours = OF_WORKERS[how]
    text = WORKERS.replace("METHOD", method)
    if method == "fork":  # a copy of hookscope
        text = text.replace('"hookscope" in sys.modules', "None")
    ending = compare(text, *words, "argument", ours=ours)
    assert ending.stdout.count(b"False" if method != "fork" else b"None") == 3
    assert ending.stdout.endswith(b"True\n")
    assert ending.status == 1  # of the process whose function lacks its argument


MODULE = """
    import atexit, sys
    print(list(globals()), __name__, __package__, __file__, __spec__.name, __cached__)
    print(sys.argv, sys.path, __doc__, type(__loader__).__name__)
    atexit.register(lambda: print("__file__" in globals()))
    sys.stdout.flush()
    if "fail" in sys.argv:
        1 / 0
    if "stop" in sys.argv:
        raise KeyboardInterrupt
    sys.exit(4)
    """


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "package.module", "-m", "--every", "1"],
        ["-m", "package.module", "fail"],
        ["-m", "package.module", "stop"],
        ["-m", "package"],
        ["-m", "package.missing"],
        ["-m", "json.tool", "--help"],
        ["package"],
        ["package/", "fail"],
        ["./archive.zip", "fail"],
        ["compiled.pyc", "fail"],
        ["compiled", "fail"],
    ],
    ids=" ".join,
)
def test_modules_folders_and_archives_run_as_under_python(compare, tmp_path, words) -> None:
    folder = tmp_path / "work"
    (folder / "package").mkdir()
    text = textwrap.dedent(MODULE)
    for name in ("__main__", "module"):
        (folder / "package" / f"{name}.py").write_text(text)
    (folder / "package" / "__init__.py").write_text("import sys; print('package', sys.argv)")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", text)
    (folder / "source.py").write_text(text.replace("__spec__.name", "__spec__"))
    for name in ("compiled.pyc", "compiled"):
        py_compile.compile(str(folder / "source.py"), str(folder / name), doraise=True)
    compare("", *words)


@posix
def test_a_link_and_a_pipe_run_as_under_python(compare, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "real").mkdir()
    (folder / "link.py").symlink_to("real/script.py")
    text = "import sys; print(__file__, sys.argv, sys.path[0])"
    compare(text, "link.py", name="real/script.py")
    compare("", "/dev/stdin", stdin=b"import sys; print(__file__, sys.argv, sys.stdin.read())")


@posix
@pytest.mark.parametrize("word", ["-", "/dev/stdin"])
@pytest.mark.parametrize("fails", ["", "1 / 0", "x = ("], ids=["end", "error", "syntax"])
def test_a_script_from_standard_input_runs_as_under_python(compare, word: str, fails: str) -> None:
    text = f"""
    import helper, sys
    print(sys.argv, sys.path, __file__, __cached__, __spec__, __loader__, repr(sys.stdin.read()))
    {fails}
    """
    source = textwrap.dedent(text).encode()
    if word != "-":
        source = source.replace(b"helper, ", b"")  # what is beside it is not found
        source = source.replace(b"__loader__", b"type(__loader__)").replace(b"x = (", b"x =")
    ending = compare("", word, "-m", "--every", name="helper.py", stdin=source)
    if not fails:
        assert ending.status == 0 and ending.stdout.startswith(f"['{word}', '-m', '--ev".encode())
    elif word == "-":
        assert ending.status == 1 and b"<stdin>" in ending.stderr


def test_modules_beside_the_script_are_imported_as_under_python(compare, tmp_path: Path) -> None:
    """Those whose names are also those of modules that hookscope uses."""
    folder = tmp_path / "work" / "sub"
    names = ("click", "json", "pathlib", "uuid", "dataclasses", "logging", "click_helper", "os")
    for name in names:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text("mine = True")
    (folder / "errno.py").write_text("mine = True")  # built in, which no file replaces
    (folder / "shlex").mkdir()  # no package: the standard library's is found
    text = f"import errno, shlex, {', '.join(names)}\n" + "".join(
        f"print('{name}', hasattr({name}, 'mine'))\n" for name in ("errno", "shlex", *names)
    )
    ending = compare(text, "sub/script.py", name="sub/script.py")
    assert ending.stdout.count(b"True") == len(names) - 1  # os is imported before any script


def test_what_is_loaded_before_the_script_is_small(compare, tmp_path, clean_environment) -> None:
    (tmp_path / "work" / "loaded.py").write_text(
        "import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    plain, ours = both(["loaded.py"], tmp_path / "work", clean_environment)
    loaded = set(ours.stdout.decode().split()) - set(plain.stdout.decode().split())
    assert loaded - set(sys.stdlib_module_names) == {"click", "hookscope"}
    unwanted = {"multiprocessing", "subprocess", "random", "tempfile", "asyncio", "concurrent"}
    assert not loaded & unwanted


@pytest.mark.parametrize(
    ("program", "title"),
    [
        (Program("runs/train.v2.py"), "train.v2"),
        (Program("folder/"), "folder"),
        (Program("a.zip"), "a"),
        (Program("-"), "stdin"),
        (Program("lab.train", is_module=True), "train"),
        (Program("lab.__main__", is_module=True), "lab"),
    ],
)
def test_a_program_has_a_short_title(program: Program, title: str) -> None:
    assert program.title == title
