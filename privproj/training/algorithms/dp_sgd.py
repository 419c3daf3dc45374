"""Define DP-SGD, which clips and sums whole gradients and adds noise to the sum."""

from privproj.training.view import Algorithm

RECORDS = (Algorithm(name="dp-sgd", summary="Clip every record's gradient, add noise to the sum."),)
