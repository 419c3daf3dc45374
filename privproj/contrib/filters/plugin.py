"""Register ``privproj filter``, and let ledgers enforce their targets by filters."""

BUDGETS = {"order": "privproj.contrib.filters.ledger:LedgerFilter"}

COMMANDS = {
    "filter": (
        "Runs",
        "Compute the steps that fit if phases depend on outputs.",
        "privproj.contrib.filters.command:filter_command",
    )
}
