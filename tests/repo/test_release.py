"""Metadata, README of the package index, and the checklist of a release."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from datetime import date
from types import SimpleNamespace

import pytest
from helpers import README, ROOT, needs

import privproj

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = dict(re.findall(r"^([\w-]+): (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture
def readme_for_index(monkeypatch):
    """The readme that a build puts into the package."""
    given = {}
    monkeypatch.setitem(
        sys.modules,
        "setuptools",
        SimpleNamespace(setup=lambda **settings: given.update(settings), find_packages=lambda **_: []),
    )
    runpy.run_path(str(ROOT / "setup.py"))
    assert given["long_description_content_type"] == "text/markdown" and "readme" in PROJECT["project"]["dynamic"]
    return given["long_description"]


def test_package_index_readme_has_absolute_links_only(readme_for_index):
    for target in re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", readme_for_index):
        assert "".join(target).startswith("https://")
    assert "<img" in README and "<img" not in readme_for_index


def test_package_index_readme_keeps_commands_and_headings(readme_for_index):
    assert re.findall(r"^\$ .*", readme_for_index, re.MULTILINE) == re.findall(r"^\$ .*", README, re.MULTILINE)
    assert re.findall(r"^#.*", readme_for_index, re.MULTILINE) == re.findall(r"^#.*", README, re.MULTILINE)
    assert "pip install -q privproj &&" in readme_for_index and "pip install 'privproj[torch]'" in readme_for_index


def test_license_is_expression_with_files():
    project = PROJECT["project"]
    assert project["license"] == CITATION["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE"]
    assert (ROOT / "LICENSE").read_text().split()[:2] == ["Apache", "License"]
    assert not any(sentence.startswith("License ::") for sentence in project["classifiers"])
    (builder,) = PROJECT["build-system"]["requires"]
    assert int(re.fullmatch(r"setuptools>=(\d+)", builder)[1]) >= 77  # the first that knows both keys


def test_version_changelog_citation_and_tag_agree():
    """A release has a date in the changelog and the citation, and only a release has a tag."""
    version, changelog = privproj.__version__, (ROOT / "CHANGELOG.md").read_text()
    newest, state = re.search(r"^## (\S+) \((.*)\)$", changelog, re.MULTILINE).groups()
    assert newest == CITATION["version"] == version
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if state == "unreleased":
        assert "date-released" not in CITATION and f"v{version}" not in tags
    else:
        assert date.fromisoformat(state).isoformat() == CITATION["date-released"]


def test_pages_and_messages_do_not_install_from_an_index():
    """Nothing is published. ``setup.py`` writes the command into the readme that only an index shows."""
    command = re.compile(r"pip install [^&`\n]*['\" ]privproj(?![-\w/])")
    assert command.search("Run: pip install 'privproj[torch]'") and command.search("pip install -q privproj")
    folders = ("docs", "privproj", "cli", "examples", "benchmarks")
    pages = [path for folder in folders for path in (ROOT / folder).rglob("*.*")] + [*ROOT.glob("*.md")]
    texts = [path for path in pages if path.suffix in (".md", ".toml", ".yml", ".py", ".html")]
    assert len(texts) > 300 and not [path for path in texts if command.search(path.read_text())]


@pytest.mark.parametrize(
    "program",
    [
        "import privproj; privproj.epsilon(privproj.M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)",
        "import privproj; privproj.sigma(privproj.M2(dim=2048, rank=16), epsilon=1.0, delta=1e-5)",
        "import privproj as p; p.epsilon(p.Gaussian(noise_multiplier=1.0), delta=1e-5, steps=1000, sampling_rate=0.01)",
        "from privproj_cli.main import exit_code as f; f('epsilon gaussian --noise-multiplier 1 --delta 1e-5'.split())",
    ],
)
def test_first_answer_does_not_load_numba(program):
    unwanted = "import sys; assert not {'numba', 'llvmlite', 'scipy', 'torch', 'dp_accounting'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{program}\n{unwanted}"], check=True, capture_output=True)


def test_root_pages_have_no_invented_address():
    """Addresses of the project are the owner's to fill in."""
    owner = PROJECT["project"].get("urls", {})
    for name in ("CITATION.cff", "SECURITY.md", "CONTRIBUTING.md"):
        assert not re.findall(r"https?://|\S+@\S+\.\w+", (ROOT / name).read_text()) or owner, name


def test_installation_page_states_use_of_dependencies():
    uses = runpy.run_path(str(ROOT / "benchmarks" / "size.py"))["USES"]
    assert list(uses) == [re.match(r"[\w-]+", sentence)[0] for sentence in PROJECT["project"]["dependencies"]]
    page = (ROOT / "docs" / "installation.md").read_text()
    for name, sentence in uses.items():
        assert re.search(rf"^\| {name} \| [\d.]+ \| {re.escape(sentence)} \|", page, re.MULTILINE)


def test_installation_page_states_imports_of_query():
    size = runpy.run_path(str(ROOT / "benchmarks" / "size.py"))
    page = (ROOT / "docs" / "installation.md").read_text()
    heads = re.search(r"^\| package \|(.*) \|$", page, re.MULTILINE)[1].split(" | ")
    for kind, sentence in size["QUERIES"].items():
        column = heads.index(f"loaded for {kind}")
        loaded = size["loaded_by"](sentence)
        for name in size["USES"]:
            output = re.search(rf"^\| {name} \|(.*) \|$", page, re.MULTILINE)[1].split(" | ")[column]
            assert (output == "yes") == bool(size["modules_of"](name) & loaded), (kind, name)


def commands_of_release():
    """The commands of the checklist of a release."""
    (block,) = re.findall(r"```sh\n(.*?)```", CONTRIBUTING.split("\n## Release\n")[1].split("\n## ")[0], re.DOTALL)
    return [line.strip() for line in block.splitlines() if line.strip()]


def test_release_checklist_covers_supported_pythons():
    build, tried = commands_of_release()
    assert build.startswith("python -m build") and tried.startswith(".ci/versions --quick")
    named = [
        sentence.rsplit(" ", 1)[1]
        for sentence in PROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", sentence)
    ]
    assert tried.split()[2:] == [f"python{version}" for version in named]
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


@pytest.mark.slow
def test_release_checklist_commands_run(tmp_path):
    """In a copy; it asks a package index, and leaves out a python that is not on this machine."""
    needs("build")
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for command in commands_of_release():
        arguments = [sys.executable if word == "python" else word for word in command.split()]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        if arguments[0] != sys.executable:
            found = re.findall(r"python\S+ newest\n(\S+)\n(epsilon = \S+)", done.stdout)
            assert found and set(found) == {(privproj.__version__, "epsilon = 0.7382")}
            assert done.stdout.count("2 of 2 entries pass") == len(found)
    assert len([*(tmp_path / "dist").glob("privproj-*")]) == 2
