"""What is installed, and the README as a package index shows it: there, links to files and pictures lead nowhere."""

import re
from pathlib import Path

from setuptools import find_packages, setup


def readme_for_index() -> str:
    """The README with the name of the package in place of the folder, and words in place of what is not there."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = text.replace("-c constraints.txt .", "privproj").replace("-c constraints.txt '.[", "'privproj[")
    text = re.sub(r'<img [^>]*alt="([^"]*)"[^>]*>', r"*(picture in the repository: \1)*", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    packages=[*find_packages(include=["privproj", "privproj.*"]), "privproj_cli"],
    long_description=readme_for_index(),
    long_description_content_type="text/markdown",
)
