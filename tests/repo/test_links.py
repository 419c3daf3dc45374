"""Relative links and anchors of all Markdown files lead to files and headings that git keeps.

``mkdocs build --strict`` checks the links of the site. A link of the site need not work in the repository, because git
does not keep the generated pages, and the other way round.
"""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers import ROOT, needs

TARGET = re.compile(r"\]\(([^)\s]+)|\b(?:href|src)=\"([^\"]+)\"")
GENERATED = re.compile(r"docs/(api|bounds)/(?!README)[\w.-]+\.md")
GENERATED_HINT = "git does not keep generated pages: link README.md#NAME of the folder, which is the page on the site"


@cache
def tracked():
    """Return all files that git keeps or would keep, as paths relative to the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("git tells which files there are")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def prose(text):
    """Return a Markdown text without blocks of code and code in backquotes."""
    return re.sub(r"(`+)(?!`).+?\1", "code", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text):
    """Return the anchors of a Markdown text: explicit ones, and those that GitHub makes of headings."""
    body = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r'<a id="([^"]+)"></a>', body))
    for heading in re.findall(r"^#+ (.*)$", body, re.MULTILINE):
        sentence = re.sub(r"\[([^]]*)\]\([^)]*\)|<[^>]*>", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", sentence.strip().lower()).replace(" ", "-")
        found.add(next(name for n in range(1000) if (name := slug if n == 0 else f"{slug}-{n}") not in found))
    return found


def dead_links(root, names):
    """Return "FILE: LINK, REASON" for every relative link of Markdown files ``names`` that leads nowhere."""
    known = {*names, *(str(folder) for name in names for folder in Path(name).parents)}
    dead = []
    for page in (name for name in names if name.endswith(".md")):
        for link in (first or second for first, second in TARGET.findall(prose((root / page).read_text()))):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (root / page).parent.joinpath(path).resolve() if path else (root / page).resolve()
            name = target.relative_to(root.resolve()).as_posix() if target.is_relative_to(root.resolve()) else ""
            if name not in known:
                dead.append(
                    f"{page}: {link}, {GENERATED_HINT if GENERATED.fullmatch(name) else 'there is no such file'}"
                )
            elif anchor and anchor not in anchors(target.read_text()):
                dead.append(f"{page}: {link}, there is no such anchor")
    return dead


def test_markdown_links_lead_to_files_and_anchors():
    dead = dead_links(ROOT, tracked())
    assert dead == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("[x](gone.md)", "there is no such file"),
        ('<img src="gone.svg">', "there is no such file"),
        ("[x](../../outside.md)", "there is no such file"),
        ("[x](#gone)", "there is no such anchor"),
        ("[x](../README.md#gone)", "there is no such anchor"),
        ("[x](../README.md#comment)", "there is no such anchor"),
        ("[x](bounds/m2-rank-free.md)", GENERATED_HINT),
    ],
)
def test_dead_links_detects_planted_link(tmp_path, link, reason):
    good = "[a](../README.md#a-good-heading) [b](#b) [c](https://gone.example) `[d](gone.md)`\n\n# B\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# A *good* heading\n\n```sh\n# comment\n```\n\n[docs](docs)\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text(good)
    names = ["README.md", "docs/page.md"]
    assert dead_links(tmp_path, names) == []
    page.write_text(good + link)
    (found,) = dead_links(tmp_path, names)
    assert found.startswith("docs/page.md: ") and found.endswith(reason)


def test_repeated_headings_have_numbered_anchors():
    assert anchors("# A\n\n## B\n\n## B\n\n## [C](x.md) `d`\n") == {"a", "b", "b-1", "c-d"}


@pytest.mark.parametrize(
    ("link", "succeeds"), [("[x](other.md#there)", True), ("[x](gone.md)", False), ("[x](other.md#gone)", False)]
)
def test_ci_site_command_rejects_planted_link(tmp_path, link, succeeds):
    needs("mkdocs", "material")
    (line,) = re.findall(r"^.*mkdocs (build .*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    (checks,) = re.findall(r"^validation:\n(?: +.*\n)+", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\n{checks}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(link)
    (tmp_path / "docs" / "other.md").write_text("# There\n")
    command = [sys.executable, "-m", "mkdocs", *shlex.split(line)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == succeeds, done.stderr
