"""What rests on the accounting and what nothing in it knows: selection, filters, events of dp-accounting, GDP mu."""
