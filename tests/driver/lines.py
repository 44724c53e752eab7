"""Run the lines of ``{"lines": ["hookscope ..."], "follow": PATTERN}`` on standard input.

One process for many lines, as each of its own would import hookscope anew. For each line a JSON
list of its exit status, standard output, standard error and followers is printed: the lines that
its standard error suggests, by the pattern, each with its answer. They are run at once, because
later lines may overwrite the files that they read. Without a pattern there are none.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys

from hookscope.cli.main import main


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
        suggested = re.findall(asked["follow"], answer[2], re.MULTILINE) if asked["follow"] else []
        after = [each for each in suggested if each not in seen]
        seen.update(after)
        print(json.dumps([*answer, [(each, *answer_to(each)) for each in after]]))
