"""Prepare the site of ``docs/`` for ``mkdocs``: generated pages, files outside ``docs/``, links, and MathJax.

The links in Markdown files lead to files of the repository. These hooks translate them into links of the site. Git does
not keep the generated pages, so the repository refers to a generated page ``NAME.md`` as ``README.md#NAME``, the row of
the page in the index of its folder. On the site that link leads to the page. The site includes MathJax, so that the
browser of a reader loads nothing from another host.
"""

import re
import sys
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# path in the repository -> path on the site, for pages that have another place there
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "tests/README.md": "tests.md",
    "README.md": "index.md",
    "docs/README.md": "documentation.md",
}
MATHJAX = "sphinx-mathjax-offline/static/mathjax/"  # folder of MathJax in its package
NEEDED = re.compile(r"(tex-chtml\.js|output/chtml/fonts/woff-v2/.*\.woff)$")  # files of MathJax that the pages use

# the row of a generated page in an index: an anchor, the title, and sometimes a column with its group
ROW = re.compile(r'^\| (?:`(?P<group>[\w-]+)` \| )?<a id="(?P<name>[\w.-]+)"></a>`(?P<title>[\w.-]+)`', re.MULTILINE)
ANCHORED = re.compile(r'<a id="(?P<name>[\w.-]+)"></a>(?P<title>`[\w.-]+`)')
LINK = re.compile(r"(?P<start>\]\(|(?:src|href)=\")(?P<path>[^)\s\"#:]+)(?:#(?P<anchor>[^)\s\"]*))?(?=[)\"])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the generated pages, and replace a folder in the navigation by its pages."""
    sys.path.insert(0, str(ROOT / "docs"))
    from build import pages, write

    write(pages())
    config.nav = _expand(config.nav)
    return config


def _expand(entry: Any) -> Any:
    """Return a part of the navigation in which every path that ends with a slash is a list of pages."""
    if isinstance(entry, list):
        return [_expand(part) for part in entry]
    if isinstance(entry, dict):
        return {title: _expand(part) for title, part in entry.items()}
    return _pages_of_folder(entry) if isinstance(entry, str) and entry.endswith("/") else entry


def _pages_of_folder(folder: str) -> list[Any]:
    """Return the index of a folder and the pages it lists, in its groups; all pages if it has no index."""
    index = ROOT / "docs" / folder / "README.md"
    if not index.exists():
        return [folder + path.name for path in sorted(index.parent.glob("*.md"))]
    pages: list[Any] = [f"{folder}README.md"]
    groups: dict[str, list[Any]] = {}
    for row in ROW.finditer(index.read_text()):
        listed = groups.setdefault(row["group"], []) if row["group"] else pages
        listed.append({row["title"]: f"{folder}{row['name']}.md"})
    return pages + [{group: listed} for group, listed in groups.items()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside ``docs/``, the examples and MathJax to the site."""
    files.remove(files.src_uris["README.md"])
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix != ".md":
            name = f"examples/{path.name}"
            # exclude_docs leaves out *.py and *.toml, but these are meant for readers
            included = InclusionLevel.INCLUDED
            files.append(File.generated(config, name, abs_src_path=str(path), inclusion=included))
    package = distribution("sphinx-mathjax-offline")
    for found in package.files or ():
        name = str(found)
        if name.startswith(MATHJAX) and NEEDED.search(name):
            target = "mathjax/" + name.removeprefix(MATHJAX)
            files.append(File.generated(config, target, abs_src_path=str(package.locate_file(found))))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Translate the links of a page, and link the rows of an index to their pages."""
    here = page.file.src_uri
    source = {target: path for path, target in OUTSIDE.items()}.get(here, f"docs/{here}")
    linked = LINK.sub(lambda found: f"{found['start']}{_on_site(found, source, here)}", markdown)
    return ANCHORED.sub(lambda row: _row_on_site(row, source), linked) if source.endswith("README.md") else linked


def _on_site(found: re.Match[str], source: str, here: str) -> str:
    """Return the target of a link as seen from the page ``here`` of the site."""
    target, anchor = normpath(str(PurePosixPath(source).parent / found["path"])), found["anchor"]
    generated = PurePosixPath(target).parent / f"{anchor}.md"
    if target.startswith("docs/") and target.endswith("/README.md") and (ROOT / generated).exists():
        target, anchor = str(generated), None
    if target in OUTSIDE or target.startswith(("docs/", "examples/")):
        path = relpath(OUTSIDE.get(target, target.removeprefix("docs/")), PurePosixPath(here).parent)
        return f"{path}#{anchor}" if anchor else path
    return found[0].removeprefix(found["start"])


def _row_on_site(row: re.Match[str], source: str) -> str:
    """Return a link to the generated page of an anchor, or the anchor as it is if it has no page."""
    exists = (ROOT / PurePosixPath(source).parent / f"{row['name']}.md").exists()
    return f"[{row['title']}]({row['name']}.md)" if exists else row[0]
