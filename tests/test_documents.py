"""Every block of the README and the docs is run as it stands; every link leads somewhere.

The blocks of a page run one after the other in one folder, as a reader runs them. Those of docs/
start about two hundred processes, so they are among the exhaustive tests; the blocks of Python
directly in docs/ also run one by one.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.processes import COMMAND, in_terminal, run_python

REPO = Path(__file__).resolve().parent.parent
DOCS = REPO / "docs"
DOCUMENTS = [REPO / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELL = {"|", ">", ">>", "<", "&&", "||", ";", "&"}
BLOCK = re.compile(r"^```(sh|python|text|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# The commands that write what blocks of Python read.
WRITERS = {
    "resnet18.capture.safetensors": "capture --layer layer3.* --input img.png",
    'features = hookscope.load("features/")': "extract sample_models/digits.py:trained --layer pool"
    " --input sample_models/digits -o features/",
}


def blocks_of(path: Path) -> list[tuple[str, str]]:
    """The kind and the text of each block of a page that can be run."""
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [(kind, text) for kind, text in found if kind in ("sh", "python")]


def pages() -> list[object]:
    return [
        pytest.param(
            path,
            id=path.relative_to(REPO).as_posix(),
            marks=() if path.parent == REPO else pytest.mark.exhaustive,
        )
        for path in DOCUMENTS
        # The examples of the reference are those of the commands, run elsewhere.
        if path.name != "cli.md" and blocks_of(path)
    ]


def python_blocks() -> list[object]:
    return [
        pytest.param(text, id=f"{path.name}-{number}")
        for path in DOCUMENTS
        if path.parent == DOCS
        for number, (kind, text) in enumerate(blocks_of(path), start=1)
        if kind == "python"
    ]


def commands_of(text: str) -> list[list[str]] | None:
    """The words of each line behind ``hookscope``; None where something else is run as well."""
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", "").splitlines()]
    lines = [words for words in lines if words]
    plain = all(words[0] == "hookscope" and not SHELL & set(words) for words in lines)
    return [words[1:] for words in lines] if plain and "$" not in text else None


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_blocks_of_a_page_run_in_order(
    page: Path, samples_folder: Path, clean_environment, run, run_script
) -> None:
    for kind, text in blocks_of(page):
        if kind == "sh":
            run_shell(text, samples_folder, clean_environment, run)
        else:
            run_block(text, samples_folder, run_script)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", python_blocks())
def test_python_block_runs(text: str, samples_folder: Path, run, run_script) -> None:
    for words in (words for line, words in WRITERS.items() if line in text):
        assert run(*words.split(), cwd=samples_folder).rc == 0
    run_block(text, samples_folder, run_script)


def run_block(text: str, folder: Path, run_script) -> None:
    script = folder / "block.py"
    script.write_text(text, encoding="utf-8")
    done = run_script(script)
    assert done.rc == 0, done.stderr


def run_shell(text: str, folder: Path, environment: dict[str, str], run) -> None:
    commands = commands_of(text)
    for words in commands or ():
        done = run(*words, cwd=folder)
        assert done.rc == 0, (words, done.stderr)
        assert done.stdout
    if commands is not None:
        return
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{text}"],
        cwd=folder,
        env=environment | {"PATH": f"{scripts}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or ">" in text


def test_a_how_to_page_loads_what_its_commands_write() -> None:
    pages = 0
    for path in sorted((DOCS / "how-to").glob("*.md")):
        parts = dict.fromkeys(("sh", "python", "text", "console"), "")
        for kind, text in BLOCK.findall(path.read_text()):
            parts[kind] += text
        loaded = set(re.findall(r'hookscope\.load\("([^"]+)"\)', parts["python"]))
        written = set(re.findall(r"-o (\S+)", parts["sh"]))
        assert not written or loaded <= written, path.name
        pages += bool(written and loaded)
    assert pages


def shown_commands() -> list[object]:
    """Each command of the README's blocks, with the output that the README shows for it."""
    found, commands = [], []
    for kind, text in BLOCK.findall((REPO / "README.md").read_text()):
        if kind == "sh":
            commands = commands_of(text) or []
        elif kind == "text":
            command = commands.pop(0)
            found.append(pytest.param(command, text, id=" ".join(command)))
    return found


def lines_on_a_terminal(command: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """The lines that a command writes to a standard output that is a terminal of 80 columns."""
    environment = environment | {"COLUMNS": "80", "NO_COLOR": "1"}
    words, nowhere = (*COMMAND, *command), Path(os.devnull)
    written = in_terminal(*words, cwd=folder, env=environment, stderr=nowhere)
    return [line for line in written.decode().splitlines() if line.strip()]


def agree(shown: str, printed: str) -> bool:
    """Whether two lines have the same words, and numbers that are equal to 1%."""
    pairs = list(zip_longest(shown.split(), printed.split(), fillvalue=""))
    return all(a == b or is_near(a, b) for a, b in pairs)


def is_near(a: str, b: str) -> bool:
    try:
        return math.isclose(float(a.rstrip("%;")), float(b.rstrip("%;")), rel_tol=0.01)
    except ValueError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal")
@pytest.mark.parametrize(("command", "text"), shown_commands())
def test_output_in_the_readme_is_that_of_the_command(
    command: list[str], text: str, samples_folder: Path, clean_environment: dict[str, str]
) -> None:
    check_shown(text, lines_on_a_terminal(command, samples_folder, clean_environment))


def sessions() -> list[object]:
    """Each command after a ``$`` in the README, with the output of both streams."""
    blocks = BLOCK.findall((REPO / "README.md").read_text())
    shown = "".join(text for kind, text in blocks if kind == "console")
    found = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", shown, re.MULTILINE)
    return [pytest.param(shlex.split(line), text, id=line) for line, text in found]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "text"), sessions())
def test_a_session_in_the_readme_is_that_of_the_command(
    words: list[str], text: str, samples_folder: Path, run
) -> None:
    done = run(*words[1:], cwd=samples_folder)
    check_shown(text, [*done.stdout.splitlines(), *done.stderr.splitlines()])
    assert (done.rc != 0) is ("Error: " in text)


def check_shown(text: str, printed: list[str]) -> None:
    """Check that lines were printed in this order, without others where there are no dots."""
    start, may_skip = 0, False
    for line in filter(None, text.splitlines()):
        if line == "...":
            may_skip = True
            continue
        ends = len(printed) if may_skip else min(start + 1, len(printed))
        found = [at for at in range(start, ends) if agree(line, printed[at])]
        assert found, (line, printed)
        start, may_skip = found[0] + 1, False
    assert may_skip or start == len(printed)


def test_the_readme_begins_with_what_a_new_user_needs() -> None:
    text = (REPO / "README.md").read_text("utf-8")
    wanted = (
        *("pip install", "`make demo`", "`make test`", "](docs/images/", "```sh", "```text"),
        *("## Your own model", "Fix: ", "$ hookscope run --list", "hookscope run train.py"),
        *("| hookscope | hooks by hand |", "## Documentation"),
    )
    lines = [text.count("\n", 0, text.index(each)) for each in wanted]
    assert lines == sorted(lines)
    assert lines[3] < 20 and lines[8] < 100
    last = text[text.index("## Documentation") :]
    assert "](docs/questions/index.md)" in last and len(LINK.findall(last)) < 30


def anchors_of(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = HEADING.findall(re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M))
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", [*DOCUMENTS, *REPO.glob("*.md"), *REPO.glob("*/README.md")])
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        linked = path.parent / target if target else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors_of(linked), f"{target}#{anchor}"


def test_paths_and_names_in_the_guide_of_contributors_exist(repo: Path) -> None:
    text = (repo / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(r"[` ]((?:[a-z_]+/)+(?:[a-z_]+\.py)?)(?:`|::| )", text)
    assert len(paths) > 60
    roots = (repo, repo / "hookscope", repo / "hookscope" / "views")
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []
    source = "\n".join(file.read_text("utf-8") for file in (repo / "hookscope").rglob("*.py"))
    names = re.findall(r"`(?:[A-Z]\w+\.)?(_?[A-Za-z][A-Za-z_]{5,})`", text)
    unknown = [name for name in names if not re.search(rf"\b{name}\b", source)]
    assert [name for name in unknown if name not in ("X_findings", "vVERSION")] == []


def test_every_page_is_reached_from_the_start_of_the_site() -> None:
    reached, open_pages = set(), {DOCS / "index.md"}
    while open_pages:
        page = open_pages.pop()
        reached.add(page)
        links = {(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text())}
        open_pages |= {
            link for link in links if link.suffix == ".md" and DOCS in link.parents
        } - reached
    assert reached == set(DOCS.rglob("*.md"))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    words = ["-m", "sphinx", "--fail-on-warning", "--quiet", "--builder", "html", DOCS, tmp_path]
    run_python(*words, status=0)
    assert (tmp_path / "questions" / "loss-is-nan.html").exists()
    assert "gradcam" in (tmp_path / "searchindex.js").read_text()
