"""What privacy filters add to the core."""

BUDGETS = {"order": "privproj.contrib.filters.ledger:LedgerFilter"}

COMMANDS = {
    "filter": (
        "Runs",
        "How many steps fit if later phases depend on earlier outputs.",
        "privproj.contrib.filters.command:filter_command",
    )
}
