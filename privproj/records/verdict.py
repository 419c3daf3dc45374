"""Verdicts: what checking a file found, whatever the file is."""

from dataclasses import dataclass

AS_FAR_AS_IT_GOES = "consistent as far as it goes"
"""The verdict on a file in which nothing is wrong and planned releases are missing. Contract."""


@dataclass(frozen=True)
class Verdict:
    """Every claim of a file in words, and whether it holds."""

    claims: dict[str, bool]

    @property
    def missing(self) -> int:
        """The number of releases that were planned and are not there."""
        return 0

    @property
    def holds(self) -> bool:
        """True if every claim of the file holds."""
        return all(self.claims.values())

    @property
    def word(self) -> str:
        """The verdict in words, of which only "holds" is about all planned releases."""
        return "fails" if not self.holds else AS_FAR_AS_IT_GOES if self.missing > 0 else "holds"
