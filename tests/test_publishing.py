"""Workflows, issue forms, citation and container are valid and agree with the package."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from hookscope.version import __version__

REPO = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((REPO / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))
# Of GitHub's schema for issue forms: the types of elements, and what each must have.
ELEMENTS = {
    "markdown": {"value"},
    "textarea": {"label"},
    "input": {"label"},
    "dropdown": {"label", "options"},
}


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def matrix() -> dict[str, Any]:
    workflow = read_yaml(REPO / ".github" / "workflows" / "test.yml")
    return workflow["jobs"]["test"]["strategy"]["matrix"]


def oldest_and_newest_python(project: dict[str, Any]) -> list[str]:
    listed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    return [listed[0], listed[-1]]


def test_the_tests_run_on_three_systems_with_the_oldest_and_newest_python(project, matrix) -> None:
    oldest, newest = oldest_and_newest_python(project)
    assert project["requires-python"] == f">={oldest}"
    assert matrix["python"] == [oldest, newest]
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert {entry["os"] for entry in matrix["include"] if "marks" in entry} == set(matrix["os"])


def test_the_oldest_python_runs_with_the_oldest_torch(project, matrix) -> None:
    pinned = [entry for entry in matrix["include"] if "python" in entry]
    constraints = {entry["python"]: entry["constraints"] for entry in pinned}
    oldest, newest = oldest_and_newest_python(project)
    required = dict(
        re.findall(r"^(torch(?:vision)?)>=([\d.]+)$", "\n".join(project["dependencies"]), re.M)
    )
    assert constraints == {
        oldest: " ".join(f"{name}=={version}.*" for name, version in required.items()),
        newest: "",
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_few_rights_and_ends(path: Path) -> None:
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # `on`, which YAML 1.1 reads as a boolean
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120
        for step in job.get("steps", ()):
            assert ("uses" in step) != ("run" in step)
            # A title or a branch name in a script would be run as part of it.
            assert "${{" not in step.get("run", "")


def test_a_release_is_tested_and_published_without_a_password() -> None:
    text = (REPO / ".github" / "workflows" / "release.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    assert [name for name, job in jobs.items() if "id-token" in str(job)] == ["publish"]
    assert "secrets." not in text


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_requires(path: Path) -> None:
    form = read_yaml(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [element["id"] for element in form["body"] if element["type"] != "markdown"]
    labels = [element["attributes"].get("label") for element in form["body"] if "id" in element]
    assert len(set(ids)) == len(ids) > 0
    assert len(set(labels)) == len(labels)
    for element in form["body"]:
        assert ELEMENTS[element["type"]] <= set(element["attributes"])


def test_one_form_is_for_wrong_values() -> None:
    [form] = [form for form in map(read_yaml, FORMS) if "wrong values" in form["name"]]
    required = {e["id"] for e in form["body"] if e.get("validations", {}).get("required")}
    assert {"model", "command", "key", "expected", "actual", "versions"} <= required


def test_the_citation_is_of_this_version(project) -> None:
    citation = read_yaml(REPO / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)
    assert str(citation["version"]) == __version__
    assert citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]


def test_the_container_has_a_python_and_a_torch_that_are_supported(project) -> None:
    text = (REPO / "Containerfile").read_text("utf-8")
    assert re.findall(r"^ARG PYTHON=(.+)$", text, re.M) == oldest_and_newest_python(project)[1:]
    pinned = re.findall(r'"(torch(?:vision)?>=[\d.]+)"', text)
    assert pinned == [d for d in project["dependencies"] if d.startswith("torch")]
    ignored = (REPO / ".dockerignore").read_text("utf-8").splitlines()
    for name in ("hatch_build.py", "hookscope", "LICENSE", "pyproject.toml", "README.md"):
        assert f"!{name}" in ignored
        assert (REPO / name).exists()


def test_the_security_policy_names_what_the_code_checks() -> None:
    from hookscope.cli import refused_settings
    from hookscope.files.pickle_scan import MOST_INSTRUCTIONS
    from hookscope.sources.torchscript.operators import REFUSED
    from hookscope.specs import names_in_files

    policy = (REPO / "SECURITY.md").read_text("utf-8")
    assert set(re.findall(r"`((?:aten|image)::\w+)`", policy)) == set(REFUSED)
    assert f"pickles of more than {MOST_INSTRUCTIONS:,} instructions" in policy
    settings = policy.partition("## Settings files")[2].partition("\n## ")[0]
    keys = {*refused_settings._NEVER, *names_in_files._JUDGES}
    assert keys <= set(re.findall(r"`([\w-]+)`", settings))


def test_a_package_built_by_a_workflow_links_to_its_repository(monkeypatch) -> None:
    pytest.importorskip("hatchling")
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    def metadata() -> Any:
        return ProjectMetadata(str(REPO), PluginManager())

    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_SHA"):
        monkeypatch.delenv(name, raising=False)
    alone = metadata()
    assert alone.version == __version__
    assert alone.core.urls == {}
    assert alone.core.readme == (REPO / "README.md").read_text("utf-8")

    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/hookscope")
    monkeypatch.setenv("GITHUB_SHA", "0123abc")
    linked = metadata().core
    home = "https://git.example/somebody/hookscope"
    assert linked.urls["Issues"] == f"{home}/issues"  # cli/error_report.py reads this one
    assert f"]({home}/blob/0123abc/docs/cli.md)" in linked.readme
    assert f"]({home}/raw/0123abc/docs/images/" in linked.readme
    relative = re.findall(r"\]\((?!https?:|#)[^)]*\)|(?:src|href)=\"(?!https?:|#)", linked.readme)
    assert relative == []


def documented_statuses() -> list[tuple[str, int]]:
    rows = (REPO / "docs" / "ci.md").read_text("utf-8")
    return [
        (row, int(rc)) for row, rc in re.findall(r"^\| `hookscope (.+?)` \| (\d) \|", rows, re.M)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "status"), documented_statuses())
def test_the_documented_commands_have_the_documented_status(run, line: str, status: int) -> None:
    done = run(*shlex.split(line), cwd=REPO)
    assert done.rc == status, done.stderr


@pytest.mark.slow
def test_the_commands_of_the_documented_configurations_succeed(run, tmp_path: Path) -> None:
    text = (REPO / "docs" / "ci.md").read_text("utf-8")
    workflow, hooks = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S))
    steps = [step["run"] for step in workflow["jobs"]["model"]["steps"] if "run" in step]
    lines = [*steps, *(hook["entry"] for hook in hooks["repos"][0]["hooks"])]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("hookscope ")]
    assert {words[0] for words in commands} == {"check", "diff"}
    (tmp_path / "sample_models").symlink_to(REPO / "sample_models")
    for words in commands:
        done = run(*words, cwd=tmp_path)
        assert done.rc == 0, (words, done.stderr)
    assert (tmp_path / "check.sarif").exists()
