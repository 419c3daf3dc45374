"""DP-SGD: clip, sum and add noise to whole gradients; the baseline for the others."""

from privproj.training.view import Algorithm

RECORDS = (Algorithm(name="dp-sgd", summary="Clip every record's gradient, add noise to the sum."),)
