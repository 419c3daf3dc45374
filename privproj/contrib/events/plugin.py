"""What events of dp-accounting add to the core."""

PHASES = {"event": "privproj.contrib.events.events:EVENT_KIND"}
