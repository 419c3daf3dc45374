"""What ``mkdocs`` does besides: written pages, pages outside ``docs/``, links to them, and MathJax from its package.

The Markdown stays readable without the site, so its links lead to files of the repository. Here they become links of
the site. MathJax comes with the site, so that a reader's browser asks no other host.
"""

import re
import sys
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "tests/README.md": "tests.md",
    "README.md": "index.md",
    "docs/README.md": "documentation.md",
}
"""Pages that stand elsewhere on the site than in the repository. Its start is the README."""
MATHJAX = "sphinx-mathjax-offline/static/mathjax/"
"""Where the package keeps what a browser loads."""
NEEDED = re.compile(r"(tex-chtml\.js|output/chtml/fonts/woff-v2/.*\.woff)$")
"""The files of MathJax that the pages use."""


LINKED = re.compile(r"^\| (?:`(?P<group>[\w-]+)` \| )?\[`(?P<title>[\w.-]+)`\]\((?P<path>[\w.-]+)\)", re.MULTILINE)
"""A row of an index page: the page it leads to, and its group where the table has a column for one."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages with a source elsewhere are written; a folder in the navigation becomes the pages of its index."""
    sys.path.insert(0, str(ROOT / "docs"))
    from build import pages, write

    write(pages())
    for section in config.nav or ():
        for title, entry in section.items():
            if isinstance(entry, str) and entry.endswith("/"):
                section[title] = _pages_of_folder(entry)
    return config


def _pages_of_folder(folder: str) -> list[Any]:
    """Return the index of a folder and the pages it lists, grouped as it groups them; all pages if it has no index."""
    index = ROOT / "docs" / folder / "README.md"
    if not index.exists():
        return [folder + path.name for path in sorted(index.parent.glob("*.md"))]
    pages: list[Any] = [f"{folder}README.md"]
    groups: dict[str, list[Any]] = {}
    for row in LINKED.finditer(index.read_text()):
        listed = groups.setdefault(row["group"], []) if row["group"] else pages
        listed.append({row["title"]: folder + row["path"]})
    return pages + [{group: listed} for group, listed in groups.items()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages outside ``docs/`` and MathJax join the site."""
    files.remove(files.src_uris["README.md"])
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    package = distribution("sphinx-mathjax-offline")
    for found in package.files or ():
        name = str(found)
        if name.startswith(MATHJAX) and NEEDED.search(name):
            target = "mathjax/" + name.removeprefix(MATHJAX)
            files.append(File.generated(config, target, abs_src_path=str(package.locate_file(found))))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between pages of ``docs/`` and those outside, as they stand on the site."""
    here = page.file.src_uri
    source = {target: path for path, target in OUTSIDE.items()}.get(here, f"docs/{here}")
    return re.sub(
        r"(\]\(|src=\")([^)\s\"#:]+)(#[^)\s]*)?(?=[)\"])", lambda found: _linked(found, source, here), markdown
    )


def _linked(found: re.Match[str], source: str, here: str) -> str:
    """One link: its target in the repository, as seen from the page of the site."""
    target = normpath(str(PurePosixPath(source).parent / found[2]))
    on_site = OUTSIDE.get(target) or target.removeprefix("docs/")
    if target in OUTSIDE or target.startswith("docs/"):
        return f"{found[1]}{relpath(on_site, PurePosixPath(here).parent)}{found[3] or ''}"
    return found[0]
