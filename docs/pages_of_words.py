"""The page of all words: what ``privproj explain`` says, from its data file; and the claims that it explains."""

import json
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

from privproj_cli.explain import word_groups

PAGE = Path(__file__).parent / "explain.md"
PROOFS = Path(__file__).parent / "proofs.md"
CLAIMS = Path(__file__).parents[1] / "cli" / "claims.toml"
HEADER = "<!-- Written by docs/build.py from cli/words.toml: edit that. -->\n"
INTRODUCTION = """Every word that an answer prints, every exit code with its causes and remedies. On the command line
`privproj explain WORD` says the same. Bounds have [pages of their own](bounds/README.md)."""


def word_pages() -> dict[Path, str]:
    """The page, a section for each group."""
    groups = word_groups()
    sections = "\n".join(f"## {group['title']}\n\n{_entries(group)}" for group in groups)
    claims = "".join(f"{name} = {json.dumps(words)}\n" for name, words in claims_of(PROOFS.read_text()).items())
    return {
        PAGE: f"{HEADER}\n# Words and exit codes\n\n{INTRODUCTION}\n\n{sections}",
        CLAIMS: f"# Written by docs/build.py from docs/proofs.md: edit that.\n\n[claim]\n{claims}",
    }


def claims_of(proofs: str) -> dict[str, str]:
    """What every claim says: its title, and of its first paragraph the sentences before any symbol."""
    found = {}
    for name, title, paragraph in re.findall(r"^## (C\d+) (.*)\n\n((?:.+\n)+)", proofs, re.MULTILINE):
        words = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        plain = re.split(r"(?<=\.) (?=[A-Z`])", words.partition("*Setting.*")[0].strip())
        kept = list(takewhile(lambda sentence: "$" not in sentence, plain))
        found[name] = " ".join(filter(None, [f"{title}.", *kept])).replace("`", "")
    return found


def _entries(group: dict[str, Any]) -> str:
    """The words of a group."""
    prefix = "Exit " if group["kind"] == "exit code" else ""
    return "\n".join(f"### {prefix}{word['name']}\n\n{_entry(word)}" for word in group["word"])


def _entry(word: dict[str, Any]) -> str:
    """What a word means, when it happens and what to do then, and related words."""
    text = _prose(word["means"]) + "\n"
    if word.get("cases"):
        rows = "".join(f"| {_prose(c['when'])} | {_prose(c['instead'])} |\n" for c in word["cases"])
        text += f"\n| when | what instead |\n| --- | --- |\n{rows}"
    if word.get("see"):
        text += f"\nSee also: {', '.join(word['see'])}.\n"
    return text


def _prose(text: str) -> str:
    """Options and commands as code; bars do not end a cell."""
    valued = r"--(?:bound|sampling|relation|clipping) [a-z-]+"
    text = re.sub(rf"(?<![`\w-])({valued}|--[a-z][a-z0-9-]*)", r"`\1`", text)
    return text.replace("|", "\\|")
