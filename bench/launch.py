"""Runs a command; prints its exit status, the seconds it took, and its peak memory.

``python -I -S launch.py OUTPUT COMMAND...`` sends what the command prints to the file OUTPUT. A
process for this alone: on Linux the peak reported for a child begins with that of its parent.
"""

import os
import subprocess
import sys
from time import perf_counter


def main() -> None:
    """Run it."""
    with open(sys.argv[1], "wb") as output:
        start = perf_counter()
        process = subprocess.Popen(sys.argv[2:], stdout=output, stderr=output)
        memory = 0
        if hasattr(os, "wait4"):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            memory = usage.ru_maxrss
        else:
            process.wait()
        print(process.returncode, perf_counter() - start, memory)


if __name__ == "__main__":
    main()
