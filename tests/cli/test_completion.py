"""Completion: the scripts, and the words that they ask for."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hookscope.cli import completion_values
from hookscope.cli.help_topics import TOPICS
from hookscope.cli.main import cli
from hookscope.specs import catalog
from tests.conftest import REPO

SHELLS = ("bash", "zsh", "fish", "powershell")


@pytest.fixture
def complete(run, tmp_path):
    """Ask for the words that may follow, as bash does; the last one typed may be unfinished."""

    def ask(*words: str) -> list[str]:
        typed = ["hookscope", *words]
        env = {
            "_HOOKSCOPE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(typed),
            "COMP_CWORD": str(len(typed) - 1),
        }
        done = run(env=env)
        assert (done.rc, done.stderr) == (0, "")
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    return ask


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_itself_accepts_the_script(run, tmp_path: Path, shell) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(run("completion", shell).stdout)
    subprocess.run([shell, "-n", str(script)], check=True)


@pytest.fixture
def bash(tmp_path: Path, clean_environment):
    """Ask the script in a real bash, with the words as bash splits them at ':'."""
    import sys

    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    command = tmp_path / "bin" / "hookscope"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hookscope "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{clean_environment['PATH']}"

    def ask(line: str, **more: str) -> list[str]:
        words = re.findall(r":+|[^\s:]+", line) + [""] * line.endswith(" ")
        asking = f"""
            eval "$(hookscope completion bash)"
            COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
            COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
            _hookscope_completion hookscope
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "-c", asking],
            env=clean_environment | {"PATH": path} | more,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return sorted(done.stdout.split())

    return ask


def test_bash_completes_through_the_script(bash) -> None:
    assert bash("hookscope tree resnet1") == ["resnet101", "resnet152", "resnet18"]


def test_bash_completes_words_with_a_colon(bash, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "net.py").write_text("class Net: ...\ndef narrow(): ...\ndef _own(): ...\n")
    (tmp_path / "hub" / "models--openai--gpt2").mkdir(parents=True)
    cache = {name: str(tmp_path / "cache") for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME")}
    for name, value in cache.items():
        monkeypatch.setenv(name, value)
    spec = f"{tmp_path / 'net.py'}:Net"
    completion_values.remember_layers(spec, [("conv1", "Conv2d"), ("fc", "Linear")], complete=True)
    # Bash replaces only what follows the colon.
    assert bash("hookscope tree net.py:N") == ["Net"]
    assert bash("hookscope tree net.py:") == ["Net", "narrow"]
    assert bash("hookscope capture net.py:Net --layer conv", **cache) == ["conv1"]
    assert bash("hookscope capture -m net.py:Net --layer ", **cache) == ["conv1", "fc"]
    assert bash("hookscope tree hf:open", HF_HUB_CACHE=str(tmp_path / "hub")) == ["openai/gpt2"]


def test_bash_completes_the_models_of_timm(bash) -> None:
    pytest.importorskip("timm")
    found = bash("hookscope tree timm:resnet10")
    assert {"resnet101", "resnet101d", "resnet10t"} <= set(found)
    assert all(name.startswith("resnet10") for name in found)


def test_commands_and_options_are_completed(complete) -> None:
    assert complete("") == list(cli.commands)
    assert complete("cap") == ["capture"]
    assert complete("capture", "--la") == ["--layer"]
    assert complete("grads", "--loss", "smooth") == ["smooth_l1"]
    assert complete("grads", "--what", "output,in") == ["output,input"]
    assert complete("completion", "") == list(SHELLS)


def test_weights_are_completed_with_names_beside_files(complete) -> None:
    # Last, so that bash, which drops what came before the files, keeps the names.
    assert complete("capture", "resnet18", "--weights", "d") == ["d", "default"]
    names = ["default", "IMAGENET1K_V1", "IMAGENET1K_V2"]
    assert complete("grads", "-m", "resnet50", "--weights", "")[-4:] == ["random", *names]
    assert complete("capture", "net.py:Net", "--weights", "")[-1] == "random"


def test_help_completes_commands_and_topics(complete) -> None:
    assert complete("help", "tre") == ["tree"]
    assert complete("help", "cam") == ["cam", "cam-methods"]
    assert complete("help", "") == [*cli.commands, *TOPICS]


def test_models_are_completed_from_the_bundled_list(complete) -> None:
    names = [model.name for model in catalog.bundled_models()]
    assert complete("tree", "") == names
    assert complete("grads", "-m", "vit_b") == ["vit_b_16", "vit_b_32"]
    assert complete("models", "vgg1") == [name for name in names if name.startswith("vgg1")]


def test_completion_does_not_mind_broken_settings(complete, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hookscope.toml").write_text("nonsense")
    assert complete("tree", "alex") == ["alexnet"]


def test_layers_that_no_command_has_seen_are_not_completed(complete) -> None:
    assert complete("capture", "alexnet", "--layer", "") == []


def test_keys_and_layers_of_a_training_run_are_completed(complete) -> None:
    run = str(REPO / "sample_models" / "run")
    assert complete("show", run, "fc1/bias") == ["fc1/bias", "fc1/bias.grad", "fc1/bias.update"]
    assert complete("show", run, "lo") == ["loss"]
    for command in (["show", run], ["export", run], ["diff", run, run]):
        assert complete(*command, "--layer", "") == ["fc1", "relu", "fc2", "."]
    assert complete("show", run, "--layer", "!f") == ["!fc1", "!fc2"]
    assert complete("show", str(REPO / "sample_models" / "five.safetensors"), "conv2") == [
        "conv2/output"
    ]


def test_the_arguments_of_a_model_are_completed_from_its_source(tmp_path, monkeypatch) -> None:
    source = "class Net:\n    def __init__(self, width=3, *, wide=1): ...\ndef make(depth): ...\n"
    (tmp_path / "net.py").write_text(source + "raise SystemExit\n")
    monkeypatch.chdir(tmp_path)

    def offered(incomplete: str) -> list[str]:
        return [item.value for item in completion_values.models(None, None, incomplete)]

    assert offered("net.py:Net(") == ["net.py:Net(width=", "net.py:Net(wide="]
    assert offered("net.py:Net(width=5, wid") == [
        "net.py:Net(width=5, width=",
        "net.py:Net(width=5, wide=",
    ]
    assert offered("net.py:make(d") == ["net.py:make(depth="]
    assert offered("net.py:Other(") == ["net.py:Other("]  # files


@pytest.mark.slow
def test_layers_are_completed_once_a_command_has_seen_the_model(run, complete) -> None:
    assert run("tree", "alexnet", "-q", "--depth", "1").rc == 0
    assert complete("capture", "alexnet", "--layer", "") == [
        ".",
        "features",
        "avgpool",
        "classifier",
    ]
    assert run("tree", "alexnet", "-q").rc == 0
    assert complete("capture", "alexnet", "--layer", "classifier.1") == ["classifier.1"]
    assert complete("grads", "-m", "alexnet", "--layer", "!feat")[:2] == [
        "!features",
        "!features.0",
    ]
    assert complete("tree", "alexnet", "--type", "Li") == ["Linear"]
    assert complete("tree", "vgg11", "--layer", "") == []


def test_what_is_remembered_of_a_model(tmp_path: Path, monkeypatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    completion_values.remember_layers("net.py:Net", [("a", "X"), ("b", "Y")], complete=True)
    completion_values.remember_layers("net.py:Net", [("c", "Z"), ("b", "Y")], complete=False)
    # A file is known by where it is, not by how it was named.
    found = completion_values._recall(f"{tmp_path / 'net.py'}:Net")
    assert found == [("a", "X"), ("b", "Y"), ("c", "Z")]
    completion_values.remember_layers("net.py:Net", [("d", "Z")], complete=True)
    assert completion_values._recall("net.py:Net") == [("d", "Z")]
    assert completion_values._recall("net.py:Other") == []
    assert completion_values._recall("net.py:Net(5)") == []
    assert len([p for p in (tmp_path / "cache").rglob("*") if p.is_file()]) == 1


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "file"))
    completion_values.remember_layers("alexnet", [("a", "X")], complete=True)
    assert completion_values._recall("alexnet") == []
