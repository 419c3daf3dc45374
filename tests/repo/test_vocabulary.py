"""Code and pages use the vocabulary of the field, and public docstrings begin with an imperative verb.

``vocabulary`` reads docstrings, comments and strings, ``names`` reads identifiers and names of tests, and ``pages``
reads Markdown and TOML.

Files that do not comply yet are listed in ``to_revise.toml``. The lists only shrink: a listed file that complies is an
error, and so is a file that does not comply and is not listed. ``python -m tests.repo.test_vocabulary`` removes the
files that comply from the lists.
"""

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("to_revise.toml")
# Phrases of the column "avoid" of the style guide, and its metaphors. A word that is also a common English verb or a
# term of the field (found, given, kept, law of large numbers, promise of a caller) is only listed in a phrase.
AVOID = (
    "asked", "asked back", "drawn anew", "afresh", "whoever", "cut batches", "clip that adapts", "clips that adapt",
    "change rank", "squared shift", "two orders", "the truth from below", "rests on", "refused", "promise", "promises",
    "scene", "planted fault", "forgery", "forger", "forgers", "misses n times", "plain sight", "lattice",
    "speed only", "but for",
    "house", "room", "rooms", "door", "doors", "street", "workshop", "mirror", "mirrors", "judge", "judges", "judged",
)  # fmt: skip
PATTERN = re.compile(rf"\b({'|'.join(map(re.escape, AVOID))})\b", re.IGNORECASE)
# Home-made words in identifiers, as the same column has them.
AVOID_IN_NAMES = {
    "asked", "door", "doors", "room", "rooms", "house", "street", "whoever", "judge", "judged", "judges", "mirror",
    "law", "laws", "words", "question", "questions", "promise", "promises", "promised", "refused", "refusal", "scene",
    "scenes", "forger", "forgers", "forgery", "lattice", "said", "says", "told", "worth",
}  # fmt: skip
FILE_KEYS = {"question"}  # fields of a record that are keys of a file format: the certificate
LONGEST_TEST_NAME = 60  # characters
TAG = re.compile(r"\b(Contract|Speed only|Soundness)\. *$", re.MULTILINE)
ARTICLES = {"a", "an", "the", "this", "that", "what", "how", "where", "whether", "one", "each", "every", "all", "some",
            "whatever", "which", "when", "who", "why", "it", "its", "no", "not", "several", "many", "true"}  # fmt: skip

FILES = sorted(
    path
    for folder in ("privproj", "cli", "tests", "benchmarks", "docs", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
)

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "docs/*.toml", "cli/*.toml", "privproj/**/*.toml", "tests/*.md")
    for path in ROOT.glob(pattern)
    if path.parent.name != "api"  # written from docstrings, which the rule ``vocabulary`` reads
)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def texts(source):
    """Return the comments of a program and its strings of several words, docstrings included."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return comments + [value for value in strings if isinstance(value, str) and " " in value.strip()]


def words_to_avoid(source):
    """Return the words and tags of a program that the style guide rules out."""
    # Code in double backquotes may use any name.
    prose = [re.sub(r"``.*?``|`[^`\n]*`", "", text, flags=re.DOTALL) for text in texts(source)]
    return sorted({word.lower() for text in prose for word in [*PATTERN.findall(text), *TAG.findall(text)]})


def names_to_avoid(source):
    """Return the identifiers that a program defines and that contain a home-made word, and too long names of tests."""
    tree = ast.parse(source)
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for kind, name in ((ast.Name, "id"), (ast.Attribute, "attr")):
        nodes = (node for node in ast.walk(tree) if isinstance(node, kind) and isinstance(node.ctx, ast.Store))
        names |= {getattr(node, name) for node in nodes}
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name))
    names -= FILE_KEYS & {node.target.id for node in nodes}
    return sorted(
        name
        for name in names
        if (name.startswith("test_") and len(name) > LONGEST_TEST_NAME)
        or AVOID_IN_NAMES & {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    )


def words_on_page(text):
    """Return the words of a page that the style guide rules out, outside code and other spellings of a term."""
    prose = re.sub(r"(?s)```.*?```|`[^`\n]*`|^also = .*?$", "", text, flags=re.MULTILINE)
    return sorted({word.lower() for word in PATTERN.findall(prose)})


def poor_first_lines(source):
    """Return the public functions of a program whose docstring does not begin with an imperative verb."""
    poor = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        first = re.match(r"[A-Za-z]+", ast.get_docstring(node) or "Return")
        word = first.group().lower() if first else ""
        is_imperative = word and word not in ARTICLES and not re.search(r"[^s]s$|ed$", word)
        if not is_imperative and not is_property:
            poor.append(node.name)
    return poor


RULES = {
    "vocabulary": (words_to_avoid, FILES),
    "names": (names_to_avoid, FILES),
    "pages": (words_on_page, PAGES),
    "imperative": (poor_first_lines, [path for path in FILES if name_of(path).startswith(("privproj/", "cli/"))]),
}


def to_revise(rule):
    """Return the names of the files that do not comply with a rule yet."""
    return set(tomllib.loads(LIST.read_text())[rule])


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
def test_files_outside_to_revise_comply(rule):
    check, files = RULES[rule]
    listed = to_revise(rule)
    broken = {
        name_of(path): found for path in files if name_of(path) not in listed and (found := check(path.read_text()))
    }
    assert not broken


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
def test_files_in_to_revise_do_not_comply(rule):
    check, files = RULES[rule]
    known = {name_of(path): path for path in files}
    done = [name for name in to_revise(rule) if name not in known or not check(known[name].read_text())]
    assert not done, "these files comply: run python -m tests.repo.test_vocabulary"


def test_vocabulary_detects_words_in_docstrings_and_comments():
    source = 'def f():\n    """Asked of ``judge``."""\n    return "the door"  # a street\n'
    assert words_to_avoid(source) == ["asked", "door", "street"]
    assert words_to_avoid('X = 1  # seconds\n"""Speed only."""\n') == ["speed only"]
    assert words_to_avoid("judge = room(door)  # samples\n") == []


def test_names_detects_words_in_identifiers_only():
    assert names_to_avoid("def judge_it(door):\n    self.asked = Scene = 1\n") == ["Scene", "asked", "door", "judge_it"]
    assert names_to_avoid(f"def test_{'a' * 55}(): 0\ndef test_{'b' * 56}(): 0\n") == ["test_" + "b" * 56]
    assert names_to_avoid("x = 'door'\nlawn = flaws = judge(room)\n") == []


def test_pages_detects_words_outside_code():
    assert words_on_page("The door of `judge`.\n```\nasked\n```\nalso = ['room']\nstreet\n") == ["door", "street"]


@pytest.mark.parametrize("first", ["Returns x.", "The value.", "Computed value.", "``x``."])
def test_imperative_detects_other_first_words(first):
    assert poor_first_lines(f'def f():\n    """{first}"""\n') == ["f"]
    assert poor_first_lines('def f():\n    """Return x."""\n\n\ndef _g():\n    """The x."""\n') == []


def write(only_remove):
    """Write the lists; new files are added only without ``only_remove``."""
    lines = ["# Files that do not comply with a rule of tests/repo/test_vocabulary.py yet. The lists only shrink."]
    for rule, (check, files) in RULES.items():
        broken = [name_of(path) for path in files if check(path.read_text())]
        listed = [name for name in broken if not only_remove or name in to_revise(rule)]
        lines += [f"{rule} = [", *(f'    "{name}",' for name in listed), "]"]
    LIST.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(only_remove=LIST.exists())
