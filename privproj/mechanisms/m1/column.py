"""One changed column, secret projection: quantiles of the residual, and a corrected radius of the correlated part."""

from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m1._one_column import ColumnBound, promises
from privproj.result import Status

BOUND = Bound(
    name="column",
    mechanism=M1,
    summary="the published bound on changed columns, its second lemma corrected",
    formula="eps_R + eps_C: eps_R the largest residual loss within quantiles, eps_C the Gaussian epsilon at |C x| <= "
    "(1/r)(sqrt(d+r-k) + sqrt k + t1)(alpha(sqrt r + t2) + beta(sqrt k + t3))/sigma; c columns: a chain",
    source="arXiv 2601.21719, Theorems 3 and 4, with Lemma 14 corrected by privproj",
    proof="C13",
    example="privproj epsilon m1 --bound column --dim 1000 --rank 64 --span-dim 4 --residual-misalignment 8e-6 "
    "--noise-multiplier 20 --delta 1e-5",
    # eps_R + eps_C (C13): the largest residual loss within quantiles, and the Gaussian epsilon at a bound on |C x|.
    representation=ColumnBound,
    groups=False,
    splits=True,
    status=Status.CONDITIONAL,
    promises_of=promises,
    version=2,
)
