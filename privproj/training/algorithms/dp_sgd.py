"""DP-SGD: the whole gradient of every record is clipped, summed and noised. Everything else is measured against it."""

from privproj.training.view import Algorithm

RECORDS = (Algorithm(name="dp-sgd", summary="Clip every record's gradient, add noise to the sum."),)
