from privproj.contrib.selection.selection import draw_trials as draw_trials, select as select
