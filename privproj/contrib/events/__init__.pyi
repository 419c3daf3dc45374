from privproj.contrib.events.events import event_phase as event_phase
