"""What holds models has no tests, and is not to be imported twice."""

collect_ignore_glob = ["[!t]*.py"]
