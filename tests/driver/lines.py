"""Run the lines of a JSON list on standard input, each of which begins with ``hookscope``.

One process for many lines, as each of its own would import hookscope anew. For each line a JSON
list of its exit status, standard output and standard error is printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys

from hookscope.cli.main import main

for line in json.load(sys.stdin) if __name__ == "__main__" else ():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(shlex.split(line)[1:])
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
