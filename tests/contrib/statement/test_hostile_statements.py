"""Damaged privacy statements keep the laws of every command line."""

from tests.contrib.statement.command_lines import statements
from tests.differential.command_line_rules import check_case
from tests.differential.report import check_examples


def test_verify_hostile_statements_keep_all_rules():
    check_examples(statements(), check_case, 20)
