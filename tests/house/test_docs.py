"""The documentation: its commands print what it says, every bound has a page and a note, and its links lead somewhere.

A block of commands looks like a terminal: ``$ privproj ...`` and the output below it, of which lines may be left out
(``...`` stands for what changes from run to run). ``; echo "exit $?"`` shows the exit code, as in a shell.
"""

import importlib.util
import re
import shlex

import pytest
from helpers import ROOT, extras_of, needs
from privproj_cli.main import exit_code

from privproj.bounds import LINES, registry

DOCS = ROOT / "docs"
EVERY = sorted(DOCS.rglob("*.md"))
WRITTEN = [DOCS / name for name in ("README.md", "tutorial.md", "not-a-guarantee.md", "proofs.md")]
EXIT = '; echo "exit $?"'


def builder():
    """``docs/build.py`` as a module."""
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = builder()


def sessions(path):
    """Every command of a page with the lines shown below it."""
    for block in re.findall(r"```\n(\$ .*?)```", path.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.replace("\\\n", " ").splitlines()
            yield command, shown


def printed(command, capsys):
    """What a command prints on both streams, and its exit code where the page asks for it."""
    words = shlex.split(command.removesuffix(EXIT))
    assert words[0] == "privproj", command
    code = exit_code(words[1:])
    assert code == 0 or command.endswith(EXIT), command
    both = capsys.readouterr()
    return [*both.out.splitlines(), *both.err.splitlines(), f"exit {code}"]


def matches(shown, line):
    """True if a line of output is the one shown, ``...`` standing for anything."""
    return re.fullmatch(".*".join(re.escape(part) for part in shown.rstrip().split("...")), line.rstrip())


def check_session(command, shown, lines):
    """Every line shown occurs, in this order."""
    rest = iter(lines)
    for line in filter(str.strip, shown):
        assert any(matches(line, found) for found in rest), f"$ {command}\nprints no more: {line}"


def marks(path):
    """Pages that need extras are read in the full run."""
    return [pytest.mark.extra, pytest.mark.full] if extras_of(path.read_text()) else []


@pytest.mark.parametrize("path", [pytest.param(p, marks=marks(p)) for p in WRITTEN], ids=lambda p: p.name)
def test_commands_print_what_the_page_says(path, tmp_path, monkeypatch, capsys):
    needs(*extras_of(path.read_text()))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for command, shown in sessions(path):
        check_session(command, shown, printed(command, capsys))


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.name)
def test_python_blocks_print_what_they_say(path, capsys):
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(block, path.name, "exec"), {})
        lines = capsys.readouterr().out.splitlines()
        assert lines and all(f"# {line}" in block for line in lines), block


def test_a_changed_number_is_seen():
    with pytest.raises(AssertionError):
        check_session("epsilon", ["epsilon = 1.001"], ["epsilon = 1.000"])


@pytest.mark.full
def test_pages_come_from_the_registry():
    assert not BUILD.differing(BUILD.pages()), "run python docs/build.py"


def test_a_stale_page_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(BUILD, "PAGES", tmp_path)
    (tmp_path / "gone.md").write_text("left over")
    assert BUILD.differing({tmp_path / "new.md": "text"}) == ["gone.md", "new.md"]
    BUILD.write({tmp_path / "new.md": "text"})
    assert BUILD.differing({tmp_path / "new.md": "text"}) == []


@pytest.mark.parametrize("bound", registry(), ids=lambda b: f"{b.mechanism.name}.{b.name}")
def test_every_bound_has_a_note(bound):
    words = BUILD.note(bound)
    assert words["when"].strip() and words["proof"].strip()
    assert set(words["claims"]) <= anchored_claims()
    assert not bound.proof or bound.proof in words["claims"]


def test_every_note_is_about_a_bound():
    noted = {(kind, name) for kind, bounds in BUILD.notes()["bounds"].items() for name in bounds}
    assert noted == set(LINES)
    assert {path.name for path in (DOCS / "bounds").glob("*.md")} == {
        "README.md", *(f"{kind}-{name}.md" for kind, name in LINES),
    }  # fmt: skip


def anchored_claims():
    """The claims that ``proofs.md`` has a heading for."""
    return {name.upper() for name in re.findall(r'<a id="(c\d+)"></a>', (DOCS / "proofs.md").read_text())}


def anchors(path):
    """Every anchor of a page: explicit ones, and those of headings."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"></a>', text))


def links(path):
    """``(file, anchor)`` of every internal link."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            yield (path.parent / name).resolve() if name else path, anchor


@pytest.mark.parametrize("path", EVERY, ids=lambda p: str(p.relative_to(DOCS)))
def test_internal_links_resolve(path):
    for target, anchor in links(path):
        assert target.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(target), f"{path.name}: {target.name}#{anchor}"
