"""Writes the pages of ``docs/`` that have a source elsewhere, and what else is derived from declarations.

``docs/bounds`` comes from the registry and ``docs/notes.toml``, ``docs/api`` from the docstrings (with griffe, of
the extra ``docs``), ``explain.md``, ``requirements.md``, ``glossary.md`` and ``published-methods.md`` from the entries
of ``privproj explain``, ``papers.md`` from ``cli/papers.toml``, and ``privproj/run_schema.json`` from the declarations
of parameters. These five pages, the
indices and the two data files are kept in git; other pages are not, and ``mkdocs`` writes them before it makes the
site.

``python docs/build.py`` writes; ``python docs/build.py --check`` exits 1 if a file differs or should not be there.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pages_of_bounds import bound_pages
from pages_of_papers import paper_pages
from pages_of_schema import schema_pages
from pages_of_words import word_pages

DOCS = Path(__file__).parent


def api_pages() -> dict[Path, str]:
    """The pages of the Python interface; griffe is imported only here."""
    from pages_of_api import api_pages

    return api_pages()


SOURCES: dict[str, Callable[[], dict[Path, str]]] = {
    "bounds": bound_pages,
    "words": word_pages,
    "papers": paper_pages,
    "api": api_pages,
    "schema": schema_pages,
}
"""Who writes which pages."""


def pages(sources: Iterable[str] = SOURCES) -> dict[Path, str]:
    """Every file and what belongs in it."""
    return {path: text for name in sources for path, text in SOURCES[name]().items()}


def left_over(wanted: dict[Path, str]) -> set[Path]:
    """Pages in the folders that are written whole, which have no source any more."""
    folders = {path.parent for path in wanted} - {DOCS}
    return {path for folder in folders for path in folder.glob("*.md")} - set(wanted)


def write(wanted: dict[Path, str]) -> None:
    """Write every file, and remove what has no source any more."""
    for path in left_over(wanted):
        path.unlink()
    for path in outdated(wanted):
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path])


def outdated(wanted: dict[Path, str]) -> set[Path]:
    """Files that are missing or say something else."""
    return {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}


def is_kept(path: Path) -> bool:
    """True for what git keeps: the pages of ``docs`` itself, the indices of its folders, and files of data."""
    return path.suffix != ".md" or path.name == "README.md" or path.parent == DOCS


def differing(wanted: dict[Path, str]) -> list[str]:
    """Files that are outdated, left over, or missing though git keeps them."""
    old = {path for path in outdated(wanted) if path.exists() or is_kept(path)}
    return sorted(f"{path.parent.name}/{path.name}" for path in old | left_over(wanted))


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    wanted = pages()
    if arguments != ["--check"]:
        write(wanted)
        return 0
    found = differing(wanted)
    sys.stdout.write("".join(f"differs: {name}\n" for name in found) or "all written pages are up to date\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
