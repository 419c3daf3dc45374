"""Register the command ``filter`` and filters as budgets of ledgers."""

BUDGETS = {"order": "privproj.contrib.filters.ledger:LedgerFilter"}

COMMANDS = {
    "filter": (
        "Runs",
        "How many steps fit if later phases depend on earlier outputs.",
        "privproj.contrib.filters.command:filter_command",
    )
}
