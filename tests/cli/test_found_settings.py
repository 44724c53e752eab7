"""A settings file that was found: it never names code, forces or trusts; a named one may."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
import pytest

from hookscope.cli.main import cli
from hookscope.errors import SettingsError

# Whatever names Python code, or hands something to it, and a command that would take it.
CODE = [
    ("tree", "model = 'evil.py:Net'"),
    ("tree", "model = 'evil.py'"),
    ("tree", "model = 'evil:Net'"),
    ("tree", "model = 'package.evil:Net'"),
    ("tree", "model = 'someplugin:Net'"),
    ("capture", "[capture]\nmodel = '../evil.py:Net'"),
    ("capture", "[capture]\nhook = 'evil.py:hook'"),
    ("capture", "[capture]\nhook = ['conv1=evil:hook']"),
    ("capture", "[capture]\ninput = 'evil.py:batch'"),
    ("capture", "[capture]\ninput = ['random:1x3x8x8', 'mask=package.evil:batch']"),
    ("capture", "[capture]\nmethod = 'anything'"),
    ("capture", "[capture]\nmodel-arg = 'checkpoint_path=evil.pth'"),
    ("capture", "[capture]\nhook_arg = 'path=/etc/passwd'"),
    ("grads", "[grads]\nloss = 'evil.py:loss'"),
    ("check", "[check]\nloss = 'evil:loss'"),
]
# Options of free texts that name neither code nor a file.
HARMLESS = """against attn box by channels correlation device-map direction hash heads hook-kind
    layer limit positions reduce rename scores shape size sort type what chat norm head colormap
    opt-arg max-memory mean std calls stop-on units memory shard-size max-bytes only skip baseline
    generate receptive splits color-by
"""
EVIL = """
import pathlib, torch
pathlib.Path(__file__).with_name("ran").touch()
Net = torch.nn.Identity()
def hook(*arguments): ...
def batch(): return torch.ones(1, 3, 8, 8)
def loss(output): return output.sum()
"""


def write(text: str, name: str = "hookscope.toml") -> Path:
    file = Path(name).absolute()
    file.write_text(text)
    Path("evil.py").write_text(EVIL)
    return file


@pytest.mark.parametrize(("command", "text"), CODE)
def test_code_is_refused_unless_the_file_is_named(parse, command: str, text: str) -> None:
    file = write(text)
    with pytest.raises(SettingsError, match="may not do that") as caught:
        parse(command)
    assert str(file) in caught.value.message
    assert f"--config {file}" in caught.value.hint
    assert caught.value.exit_code == 2
    parse(command, "--config", str(file))
    assert not Path("ran").exists()


def test_every_option_that_takes_a_free_text_was_judged() -> None:
    """A new one may name code or files; then it belongs into the lists here."""
    judged = {"model", "input", "loss", "hook", "hook-arg", "model-arg", "method", "output"}
    judged |= {"chrome", "weights", "edit", "grad-edit", "adapter", "tokenizer", "target"}
    judged |= {"labels", "map", "config"}
    closed = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
    free = {
        option.key
        for each in cli.commands.values()
        for option in each.options()
        if not (option.is_flag or option.count or isinstance(option.type, closed))
    }
    assert free - judged - set(HARMLESS.split()) == set()


@pytest.mark.parametrize(
    "text",
    [
        "model = 'resnet50'",
        "model = 'timm:vit_tiny_patch16_224'",
        "model = 'hf:somewhere'",
        "[capture]\ninput = ['random:1x3x8x8', 'mask=a.npz:ids', 'x=text:some words']",
        "[capture]\nweights = 'a.safetensors'\nlayer = ['conv*']\ntype = 'Conv2d'",
        "[grads]\nloss = 'kl'\ntarget = 'a.npy'",
    ],
)
def test_what_names_no_code_is_taken(parse, text: str) -> None:
    import numpy as np

    np.savez("a.npz", ids=[1])
    write(text)
    assert parse("grads" if "grads" in text else "capture").params


def test_a_flag_or_a_variable_takes_the_place_of_what_is_refused(parse, monkeypatch) -> None:
    write("model = 'evil.py:Net'\n[grads]\nloss = 'evil.py:loss'\nforce = true")
    assert parse("tree", "resnet18").params["model"] == "resnet18"
    assert parse("tree", "-m", "resnet18").params["model"] == "resnet18"
    with pytest.raises(SettingsError, match="loss ="):
        parse("grads", "resnet18", "--no-force")
    monkeypatch.setenv("HOOKSCOPE_MODEL", "evil.py:Net")  # the user's own word
    monkeypatch.setenv("HOOKSCOPE_GRADS_LOSS", "ce")
    assert parse("grads", "--force").params["model"] == "evil.py:Net"


def test_a_refused_value_does_not_give_way_to_a_weaker_one(parse, tmp_path: Path) -> None:
    folder = Path(click.get_app_dir("hookscope"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hookscope.toml").write_text("model = 'resnet50'")
    write("model = 'evil.py:Net'")
    with pytest.raises(SettingsError, match="evil"):
        parse("tree")


def test_the_user_s_own_file_and_a_named_one_may_name_code(parse, tmp_path: Path) -> None:
    write("hook = 'evil.py:hook'\nforce = true\noutput = '/tmp/a.safetensors'", "named.toml")
    Path("named.toml").write_text("[capture]\n" + Path("named.toml").read_text())
    params = parse("capture", "--config", "named.toml").params
    assert (params["hooks"], params["force"]) == (("evil.py:hook",), True)
    assert params["output"] == "/tmp/a.safetensors"
    folder = Path(click.get_app_dir("hookscope"))
    folder.mkdir(parents=True, exist_ok=True)
    Path("named.toml").rename(folder / "hookscope.toml")
    assert parse("capture").params["hooks"] == ("evil.py:hook",)


@pytest.mark.parametrize("key", ["force", "trust"])
@pytest.mark.parametrize("value", ["true", "'yes'", "1"])
def test_force_and_trust_are_never_taken(parse, key: str, value: str) -> None:
    write(f"[capture]\n{key} = {value}")
    if value == "1":
        with pytest.raises(SettingsError, match="must be true or false"):
            parse("capture")
        return
    with pytest.raises(SettingsError, match=f"sets {key}, "):
        parse("capture")
    write(f"[capture]\n{key} = false")
    assert parse("capture").params[key] is False


@pytest.mark.parametrize(
    ("output", "inside"),
    [
        ("a.safetensors", True),
        ("runs/a.safetensors", True),
        ("../work/a.safetensors", True),
        ("~/a.safetensors", False),
        ("../a.safetensors", False),
        ("/tmp/a.safetensors", False),
        ("link/a.safetensors", False),
        ("dangling.safetensors", False),
        ("runs/../../a.safetensors", False),
        ("s3://bucket/features", False),
        ("file:///tmp/features/", False),
    ],
)
def test_an_output_lies_inside_the_folder_of_the_file(parse, output: str, inside: bool) -> None:
    Path("link").symlink_to("/tmp")
    Path("dangling.safetensors").symlink_to("/tmp/there-is-no-such-file.safetensors")
    write(f"[capture]\noutput = '{output}'")
    if inside:
        assert parse("capture").params["output"] == output
        return
    with pytest.raises(SettingsError, match="outside the folder"):
        parse("capture")
    write(f"[trace]\nchrome = '{output}'")
    with pytest.raises(SettingsError, match="outside the folder"):
        parse("trace")


def test_the_search_ends_at_the_repository_or_the_home_folder(parse, monkeypatch, tmp_path) -> None:
    (tmp_path / "hookscope.toml").write_text("seed = 7")
    assert parse("grads").params["seed"] == 7
    for name in (".git", ".hg"):
        (tmp_path / "work" / name).write_text("gitdir: elsewhere")
        assert parse("grads").params["seed"] == 0
        (tmp_path / "work" / name).unlink()
    (tmp_path / "work" / ".git").mkdir()
    (tmp_path / "work" / "hookscope.toml").write_text("seed = 8")
    (tmp_path / "work" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "work" / "deep")
    assert parse("grads").params["seed"] == 8  # the root itself is searched
    inside = tmp_path / "home" / "project"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert parse("grads").params["seed"] == 0
    (tmp_path / "home" / "hookscope.toml").write_text("seed = 9")
    assert parse("grads").params["seed"] == 9


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root can give files away"
)
def test_a_file_of_another_user_is_ignored_with_a_note(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "hookscope.toml").write_text("seed = 5")
    file = work / "hookscope.toml"
    file.write_text("this is [not TOML")
    os.chown(file, 12345, 12345)
    (work / "pyproject.toml").write_text("# no hookscope settings")
    os.chown(work / "pyproject.toml", 12345, 12345)
    done = run("config", "--json")
    document = json.loads(done.stdout)
    rows = {(row["command"], row["option"]): row["value"] for row in document["settings"]}
    assert rows["grads", "seed"] == 5  # the search goes on above it
    assert document["ignored"] == [str(file)]
    assert done.stderr.count("another user") == 1
    assert str(file) in done.stderr
    assert run("config", "--config", file).rc == 2  # named, it is read
    file.unlink()
    (work / "theirs").write_text("seed = 6")
    file.symlink_to("theirs")
    os.chown(file, 12345, 12345, follow_symlinks=False)  # a link of theirs to a file of ours
    assert "is ignored" in run("config").stderr


def test_config_shows_what_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "hookscope.toml"
    file.write_text('model = "evil.py:Net\\u001b[31m"\n[capture]\nforce = true')
    shown = run("config")
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
    assert rows["tree.model"] == ["evil.py:Net\\x1b[31m", "refused", str(file)]
    assert rows["capture.force"] == ["true", "refused", str(file)]
    assert shown.stderr.count("Warning: ") == 1
    assert f"--config {file}" in shown.stderr
    named = run("config", "--config", file)
    assert "refused" not in named.stdout + named.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_nothing_of_a_found_file_runs_before_it_is_named(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "evil.py").write_text(EVIL)
    (work / "hookscope.toml").write_text(
        "model = 'evil.py:Net'\n[capture]\nhook = 'evil.py:hook'\ninput = 'evil.py:batch'\n"
        "[grads]\nloss = 'evil.py:loss'\ninput = 'evil.py:batch'\n"
    )
    for name in cli.commands:
        run(name)
        typed = {"_HOOKSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": f"hookscope {name} -"}
        done = run(env={**typed, "COMP_CWORD": "2"})
        assert done.rc == 0, done.stderr
    for words in ("capture --layer ", "capture --hook ", "grads --loss ", "tree ", "show x "):
        typed = {"_HOOKSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": f"hookscope {words}"}
        assert run(env={**typed, "COMP_CWORD": "3"}).rc == 0
    assert not (work / "ran").exists()
    done = run("capture", "--config", "hookscope.toml")
    assert done.rc == 0, done.stderr
    assert (work / "ran").exists()


ELSEWHERE = ("/dev/zero", "fifo.npy", "link.npy", "../elsewhere.npy", "~/elsewhere.npy")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes")
@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        *(("capture", "input", name) for name in (*ELSEWHERE, "x=../elsewhere.npy", "../*.npy")),
        *(("capture", "input", name) for name in ("-", "s3://b/a.npy", "lines:../elsewhere.npy")),
        *(("extract", "input", name) for name in ("hub:imdb:train", "@list.txt", "@/list.txt")),
        *(("capture", "weights", name) for name in (*ELSEWHERE, "s3://b/a.safetensors")),
        *(("capture", "model", name) for name in ("/dev/zero", "../elsewhere.npy", "hf:..")),
        ("capture", "model", "resnet18(num_classes=2)"),
        *(("capture", "tokenizer", name) for name in ELSEWHERE),
        *(("capture", "adapter", name) for name in ELSEWHERE),
        *(("grads", "target", name) for name in ELSEWHERE),
        *(("top", "direction", name) for name in ELSEWHERE),
        *(("top", "input", name) for name in ELSEWHERE),
        *(("probe", "labels", name) for name in ELSEWHERE),
        *(("diff", "map", name) for name in ELSEWHERE),
        ("capture", "edit", "conv1=patch:../elsewhere.npy"),
        ("export", "output", "wandb:project"),
    ],
)
def test_a_file_elsewhere_is_refused_unless_the_settings_are_named(
    parse, tmp_path: Path, command: str, key: str, value: str
) -> None:
    import numpy as np

    np.save(tmp_path / "elsewhere.npy", np.zeros(3))
    np.save("inside.npy", np.zeros(3))
    os.symlink(tmp_path / "elsewhere.npy", "link.npy")
    os.mkfifo("fifo.npy")
    words = {"diff": ("a", "b"), "top": ("f",), "probe": ("f",), "export": ("f",)}.get(command, ())
    file = write(f"[{command}]\n{key} = {json.dumps(value)}")
    with pytest.raises(SettingsError) as caught:
        parse(command, *words)
    assert f"{file} sets {key} = " in caught.value.message
    assert f"--config {file}" in caught.value.hint
    harmless = {"map": "a=b", "edit": "conv1=zero"}.get(key, "inside.npy")
    assert parse(command, *words, f"--{key}", harmless).params
    write(f"[{command}]\n{key} = {json.dumps(harmless)}")
    assert parse(command, *words).params
