"""``hookscope completion``: the completion script of a shell."""

from __future__ import annotations

import click

from hookscope.cli.commands import Example
from hookscope.cli.completion_values import VARIABLE
from hookscope.cli.console import Console
from hookscope.cli.global_options import command
from hookscope.cli.param_types import Choice

SHELLS = ("bash", "zsh", "fish", "powershell")
# Click's script does not join the words that bash splits at ':', as in net.py:Net. Bash replaces
# only what follows the last ':', so the replies are without what precedes it.
BASH = r"""\
%(complete_func)s() {
    local IFS=$'\n'
    local response completion type value colons= rest=$COMP_LINE index spaces word
    local -a words=()

    for ((index = 0; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        spaces=${rest%%%%[![:space:]]*}
        rest=${rest#"$spaces"}
        rest=${rest#"$word"}
        colons=
        if [[ $index -gt 0 && -z $spaces && ($word == :* || ${COMP_WORDS[index - 1]} == *:) ]]; then
            words[${#words[@]} - 1]+=$word
            word=${words[${#words[@]} - 1]}
            colons=${word//[!:]}
        else
            words+=("$word")
        fi
    done

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        %(complete_var)s=bash_complete "$1")

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            for ((index = 0; index < ${#colons}; index++)); do
                value=${value#*:}
            done
            COMPREPLY+=("$value")
        fi
    done

    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
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
    examples=EXAMPLES,
)
def completion_command(ctx: click.Context, shell: str) -> None:
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
    template = BASH if shell == "bash" else script.source_template
    text = template % script.source_vars()
    if console.json:
        console.document({"schema": 1, "command": "completion", "shell": shell, "script": text})
    else:
        console.text(text)
