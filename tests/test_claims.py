"""What the pages deny is still so: each sentence that denies something is in tests/claims.toml.

A page that still says "there is no command for it" after one was added is worse than no page.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parent.parent
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
GENERATED = ("cli.md", "torchscript-models.md")
DENIAL = re.compile(
    r"\b(there (is|are) no|cannot|not implemented|not supported|no command|not tested"
    r"|hookscope (does not|has no))\b|\bonly(?=[.,;:)]|$)",
    re.IGNORECASE,
)
BLOCK = re.compile(r"^```.*?^```$|^ {4}[^\n]*$", re.DOTALL | re.MULTILINE)
CLAIMS: list[dict[str, Any]] = tomllib.loads((REPO / "tests" / "claims.toml").read_text())["claim"]


def sentences(text: str) -> list[str]:
    """The sentences, headings, items and rows of tables of a page, without its blocks of code."""
    found = []
    for part in re.split(r"\n\s*\n|\n(?=\s*[-|#])", BLOCK.sub("\n\n", text)):
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z*`\[(])", " ".join(part.split()))
    return found


def name_of(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in GENERATED], ids=name_of
)
def test_each_sentence_that_denies_something_is_listed(page: Path) -> None:
    listed = [claim["text"] for claim in CLAIMS if claim["page"] == name_of(page)]
    denials = [one for one in sentences(page.read_text(encoding="utf-8")) if DENIAL.search(one)]
    assert [one for one in denials if not any(text in one for text in listed)] == []
    assert [text for text in listed if not any(text in one for one in denials)] == []


def test_a_new_denial_is_seen() -> None:
    text = "It opens `.pt` files.\n\n- There is no command\n  that trains.\n\n    cannot = code\n"
    assert [one for one in sentences(text) if DENIAL.search(one)] == [
        "- There is no command that trains."
    ]


def test_each_claim_has_one_reason() -> None:
    for claim in CLAIMS:
        assert sum(kind in claim for kind in ("command", "python", "because")) == 1, claim


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [one for one in CLAIMS if "because" not in one], ids=lambda claim: claim["text"][:40]
)
def test_what_is_denied_is_still_so(
    claim: dict[str, Any], samples_folder: Path, run, run_script
) -> None:
    if "python" in claim:
        script = samples_folder / "claim.py"
        script.write_text(claim["python"], encoding="utf-8")
        done = run_script(script)
        assert done.rc == 0, done.stderr
        return
    done = run(*shlex.split(claim["command"]), cwd=samples_folder)
    assert done.rc == claim.get("status", 2), done.stderr
    assert claim["prints"] in " ".join((done.stdout + done.stderr).split())
