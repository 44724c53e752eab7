"""Run the lines of ``{"lines": ["hookscope ..."], "follow": false}`` on standard input.

One process for many lines, as each of its own would import hookscope anew. For each line a JSON
list of its exit status, standard output, standard error and ``[]`` is printed. With ``follow``,
what it suggests after ``next:`` is run at once, because later lines may overwrite the files that
this reads; the last entry has these lines with their answers.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys

from hookscope.cli.main import main
from tests.processes import NEXT


def answer_to(line: str) -> tuple[object, str, str]:
    """Run a line; return its exit status and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(shlex.split(line)[1:])
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    seen = set(asked["lines"])
    for line in asked["lines"]:
        answer = answer_to(line)
        after = [each for each in NEXT.findall(answer[2]) if asked["follow"] and each not in seen]
        seen.update(after)
        print(json.dumps([*answer, [(each, *answer_to(each)) for each in after]]))
