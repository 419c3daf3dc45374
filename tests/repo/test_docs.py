"""The documentation: its commands print the shown output, and every bound has a page.

A block of commands looks like a terminal: ``$ privproj ...`` and the output below it, of which lines may be left out
(``...`` stands for what changes from run to run). ``; echo "exit $?"`` shows the exit code, as in a shell. The
blocks of a page run in one folder, in order. The quick run leaves out blocks that are costly or need an extra.
"""

import difflib
import importlib.util
import re
import shlex
import sys

import pytest
from helpers import ROOT, extras_of, needs
from privproj_cli.explain import word_groups
from privproj_cli.main import exit_code

from privproj import M2
from privproj.errors import EXIT_CODES
from privproj.mechanisms.registry import bound_names, find_bound, registry

DOCS = ROOT / "docs"
FROM_ELSEWHERE = re.compile(r"docs/(explain|(api|bounds)/(?!README)[\w.-]+)\.md")
"""Pages that ``docs/build.py`` writes and git does not keep."""
EVERY = sorted(path for path in DOCS.rglob("*.md") if not FROM_ELSEWHERE.fullmatch(path.relative_to(ROOT).as_posix()))
GUIDES = (
    "how-to-choose",
    "projections",
    "lower-bounds",
    "command-line",
    "samplers",
    "user-level",
    "federated",
    "runs-and-ci",
    "sweeps",
    "verify",
    "opacus",
    "dp-accounting",
    "training",
    "training-guarantees",
    "training-models",
    "training-from-opacus",
    "audits",
    "auditors",
    "certificates",
    "installation",
)
FEATURES = [
    page
    for folder in sorted((ROOT / "privproj" / "contrib").iterdir())
    if (page := DOCS / f"{folder.name.replace('_', '-')}.md").exists()
]
"""Pages of optional features."""
WRITTEN = [
    ROOT / "README.md",
    *FEATURES,
    *(DOCS / f"{name}.md" for name in ("README", "tutorial", *GUIDES, "not-a-guarantee", "theory", "proofs")),
    *sorted(DOCS.glob("contrib/*.md")),
]
"""Pages written by hand whose commands and programs run."""
COSTLY = ("--epochs", "remaining", "filter", "privproj check", "sweep", "rank wishart", "--calibrate")
COSTLY += ("privproj ledger",)
"""Words of commands that take seconds, or need what such a command has written."""
EXIT = '; echo "exit $?"'


def builder():
    """``docs/build.py`` as a module; it imports the files beside it."""
    sys.path.append(str(DOCS))
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = builder()
BOUNDS = sys.modules["pages_of_bounds"]


def blocks(path):
    """Every block of commands of a page."""
    return re.findall(r"```\n(\$ .*?)```", path.read_text(), re.DOTALL)


def is_costly(block):
    """True for a block that the quick run leaves out."""
    return bool(extras_of(block)) or any(word in block for word in COSTLY)


def commands(block):
    """Every command of a block with the lines shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.replace("\\\n", " ").splitlines()
        yield command, shown


def printed(command, capsys):
    """What a command prints on both streams, and its exit code where the page asks for it."""
    arguments = shlex.split(command.removesuffix(EXIT))
    assert arguments[0] == "privproj", command
    code = exit_code(arguments[1:])
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


def run_blocks(wanted, tmp_path, monkeypatch, capsys):
    """Run blocks in one folder beside the examples, and compare."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for block in wanted:
        for command, shown in commands(block):
            check_session(command, shown, printed(command, capsys))


QUICK = [path for path in WRITTEN if not all(map(is_costly, blocks(path)))]
LONG = [path for path in WRITTEN if any(map(is_costly, blocks(path)))]


@pytest.mark.parametrize("path", QUICK, ids=lambda p: p.name)
def test_docs_quick_commands_print_shown_output(path, tmp_path, monkeypatch, capsys):
    run_blocks([block for block in blocks(path) if not is_costly(block)], tmp_path, monkeypatch, capsys)


def marks(path):
    """Pages that need extras are read where these are installed; that of audits takes a minute, by hand."""
    by_hand = [pytest.mark.slow] if path.name == "audits.md" else []
    return [*by_hand, pytest.mark.extra] if any(map(extras_of, blocks(path))) else by_hand


@pytest.mark.full
@pytest.mark.parametrize("path", [pytest.param(p, marks=marks(p)) for p in LONG], ids=lambda p: p.name)
def test_docs_commands_print_shown_output(path, tmp_path, monkeypatch, capsys):
    needs(*(name for block in blocks(path) for name in extras_of(block)))
    run_blocks(blocks(path), tmp_path, monkeypatch, capsys)


def programs():
    """Every Python block of every page, with the extras it needs."""
    for path in WRITTEN:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            found = [pytest.mark.extra] if extras_of(block) else []
            yield pytest.param(block, id=f"{path.name}-{number}", marks=found)


@pytest.mark.parametrize("block", [*programs()])
def test_docs_programs_print_shown_output(block, capsys):
    needs(*extras_of(block))
    exec(compile(block, "page", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(f"# {line}" in block for line in lines), block


def test_migration_examples_change_at_most_8_lines():
    found = re.findall(r"```python\n(.*?)```", (DOCS / "training-from-opacus.md").read_text(), re.DOTALL)
    assert len(found) == 4
    for before, after in zip(found[::2], found[1::2], strict=True):
        pair = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
        changed = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in pair.get_opcodes() if tag != "equal")
        assert 0 < changed <= 8


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.name)
def test_docs_shell_blocks_only_install(path):
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
        assert "pip install" in block, f"shown but not run: {block}"


def test_docs_pages_are_executed_or_generated():
    made = {DOCS / "api" / "README.md", DOCS / "bounds" / "README.md"}
    made |= {path for path in BUILD.pages(["words", "papers"]) if path.suffix == ".md"}
    measured = {DOCS / f"{name}.md" for name in ("benchmarks", "certified", "reference", "results")}
    without_commands = {DOCS / "architecture.md", DOCS / "notation.md"}
    assert set(EVERY) - made - measured - without_commands == set(WRITTEN) - {ROOT / "README.md"}


@pytest.mark.parametrize("path", [*WRITTEN, *(ROOT / "examples").glob("*.toml")], ids=lambda p: p.name)
def test_docs_state_current_bound_versions(path):
    output = re.findall(r"(?:bound_version = |rank-free is at version )(\d+)", path.read_text())
    # All examples are of rank-free.
    assert set(output) <= {str(find_bound(M2, "rank-free").version)}


def test_exit_codes_are_stated_once():
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (DOCS / "command-line.md").read_text(), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    (entries,) = (group["word"] for group in word_groups() if group["kind"] == "exit code")
    assert [int(entry["name"]) for entry in entries] == list(EXIT_CODES)


def test_check_session_rejects_changed_number():
    with pytest.raises(AssertionError):
        check_session("epsilon", ["epsilon = 1.001"], ["epsilon = 1.000"])


@pytest.mark.full
@pytest.mark.parametrize("source", ["bounds", "words", "papers", pytest.param("api", marks=pytest.mark.extra)])
def test_docs_build_pages_match_their_source(source):
    needs(*(["griffe"] if source == "api" else []))
    pages = BUILD.pages([source])
    assert not BUILD.differing(pages), "run python docs/build.py"
    names = {path.relative_to(ROOT).as_posix() for path in pages if path.suffix == ".md" and not BUILD.is_kept(path)}
    assert (names or source in ("words", "papers")) and all(map(FROM_ELSEWHERE.fullmatch, names))
    if source == "bounds":
        assert names == {f"docs/bounds/{kind}-{name}.md" for kind, name in bound_names()}


def test_docs_build_detects_stale_pages(tmp_path):
    (tmp_path / "gone.md").write_text("left over")
    folder = tmp_path.name
    wanted = {tmp_path / "new.md": "text", tmp_path / "README.md": "index"}
    assert BUILD.differing(wanted) == [f"{folder}/README.md", f"{folder}/gone.md"]
    BUILD.write(wanted)
    assert BUILD.differing(wanted) == []
    (tmp_path / "new.md").write_text("old")
    assert BUILD.differing(wanted) == [f"{folder}/new.md"]


def test_notes_of_bounds_are_complete_and_name_claims():
    noted = [bound for bound in registry() if BOUNDS.note(bound)]
    assert len(noted) == sum(map(len, BOUNDS.notes()["bounds"].values())) > 30
    for bound in noted:
        arguments = BOUNDS.note(bound)
        assert arguments["when"].strip() and arguments["proof"].strip()
        assert set(arguments["claims"]) <= anchored_claims()
        assert not bound.proof or bound.proof in arguments["claims"]


def test_page_of_bound_without_note_links_its_proof(monkeypatch):
    monkeypatch.setattr(BOUNDS, "note", lambda bound: {})
    page = BOUNDS.page(find_bound(M2, "rank-free"))
    assert "When to use it" not in page and "Full proof: [C5](../proofs.md#c5)." in page


def anchored_claims():
    """The claims that ``proofs.md`` has a heading for."""
    return {name.upper() for name in re.findall(r'<a id="(c\d+)"></a>', (DOCS / "proofs.md").read_text())}
