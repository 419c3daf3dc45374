"""Damaged certificates keep the laws of every command line."""

from helpers import needs

from tests.contrib.certify.command_lines import certificates
from tests.differential.command_line_rules import check_case
from tests.differential.report import check_examples


def test_verify_hostile_certificates_keep_all_rules():
    needs("flint")
    check_examples(certificates(), check_case, 20)
