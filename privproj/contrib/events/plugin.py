"""Register events of dp-accounting as phases of run files."""

PHASES = {"event": "privproj.contrib.events.events:EVENT_KIND"}
