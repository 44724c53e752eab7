"""``hookscope completion``: the completion script of a shell."""

from __future__ import annotations

import click

from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import Choice

SHELLS = ("bash", "zsh", "fish", "powershell")
VARIABLE = "_HOOKSCOPE_COMPLETE"  # the script sets it when it asks for completions
EXAMPLES = (
    Example("hookscope completion bash", 'For ~/.bashrc: eval "$(hookscope completion bash)"'),
    Example(
        "hookscope completion fish",
        "To install: hookscope completion fish > ~/.config/fish/completions/hookscope.fish",
    ),
)


@command(
    "completion",
    click.argument(
        "shell",
        metavar="SHELL",
        type=Choice(SHELLS),
        help=f"Shell: {', '.join(SHELLS)}.",
    ),
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    It completes commands, options, models and layers. Layer names are known once a command has
    loaded the model. For zsh, use ~/.zshrc as for bash. For PowerShell, add this line to the
    profile: hookscope completion powershell | Out-String | Invoke-Expression
    """
    from click.shell_completion import get_completion_class

    console: Console = ctx.obj
    maker = get_completion_class(shell)
    assert maker is not None
    script = maker(ctx.find_root().command, {}, "hookscope", VARIABLE)
    text = script.source_template % script.source_vars()
    if console.json:
        console.document({"schema": 1, "command": "completion", "shell": shell, "script": text})
    else:
        console.text(text)
