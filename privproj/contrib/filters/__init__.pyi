from privproj.contrib.filters.filter import Filter as Filter
