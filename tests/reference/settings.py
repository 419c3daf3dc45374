"""List the settings at which every bound is compared with its reference in mpmath."""

import itertools
from dataclasses import dataclass

from reference import FEATURES

# one grid per line: a quantity of ``privproj.evaluate`` and its parameters, with every combination of their values
SETTINGS = """
* gaussian.analytic.delta noise_multiplier=1 epsilon=1,0,50
  gaussian.analytic.delta noise_multiplier=0.001,0.1,100,1e6 epsilon=0,1e-9,50
  gaussian.analytic.delta noise_multiplier=1000 steps=1000000 epsilon=0,1,50
  gaussian.analytic.delta noise_multiplier=1 sampling_rate=0.01 epsilon=1
  gaussian.analytic.epsilon noise_multiplier=1,100 delta=1e-5,1e-100
  gaussian.analytic.delta noise_multiplier=1 adaptive_clipping_sigma=0.5,20 epsilon=1,50
  gaussian.analytic.delta noise_multiplier=1 adaptive_clipping_sigma=2 sampling_rate=0.01 epsilon=1
* gaussian.gdp.delta noise_multiplier=1000 steps=1000000 epsilon=1,0,50
  gaussian.gdp.delta noise_multiplier=0.01,1e5 epsilon=0,50
* gaussian.two-sided.delta noise_multiplier=1 epsilon=1,0,50
  gaussian.two-sided.delta noise_multiplier=0.01,100 epsilon=1e-9,1,50
* gaussian.classical.epsilon noise_multiplier=10 delta=1e-5,1e-12
  gaussian.classical.delta noise_multiplier=10,1000 epsilon=0.5
  gaussian.classical.epsilon noise_multiplier=1e5 steps=1000,1000000 delta=1e-5
* gaussian.classical-2.epsilon noise_multiplier=10 delta=1e-5,1e-12
  gaussian.classical-2.epsilon noise_multiplier=1e5 steps=1000000 delta=1e-5
* gaussian.rdp.delta noise_multiplier=1 epsilon=4,50
  gaussian.rdp.delta noise_multiplier=0.1,100 epsilon=1,50
  gaussian.rdp.delta noise_multiplier=1000,10000 steps=1000000 epsilon=1,50
  gaussian.rdp.epsilon noise_multiplier=1,1e5 delta=1e-5,1e-100
  gaussian.rdp.epsilon noise_multiplier=1000,0.001 steps=1000000 delta=1e-5
  gaussian.rdp.delta noise_multiplier=1 sampling_rate=1e-4 steps=1000000 epsilon=1,8
* gaussian.zcdp.delta noise_multiplier=1000 steps=1000000 epsilon=4,50
  gaussian.zcdp.epsilon noise_multiplier=0.001,1,1e6 steps=1,1000000 delta=1e-5
* laplace.exact.delta noise_multiplier=1 epsilon=0,0.5,1,50
  laplace.exact.delta noise_multiplier=0.01,1e6 epsilon=0,1e-9,50
* rule.basic-composition.epsilon epsilon=0.001 steps=1000000
* rule.advanced-composition.epsilon epsilon=0.001,1e-9,1 steps=1000000 slack=1e-6
* m1.known-projection.delta dim=1000 rank=64 noise_multiplier=20 epsilon=0,0.784
  m1.known-projection.delta dim=1000 rank=1 noise_multiplier=1000 epsilon=1
  m1.known-projection.delta dim=1000 rank=1000 noise_multiplier=1 epsilon=8
  m1.known-projection.delta dim=1000000 rank=64 noise_multiplier=1000 epsilon=1
* m1.known-projection-rank1.delta dim=1000 rank=64 noise_multiplier=20 epsilon=0.784,0
  m1.known-projection-rank1.delta dim=1000 rank=1 noise_multiplier=1000 epsilon=0,1
  m1.known-projection-rank1.delta dim=1000 rank=1000 noise_multiplier=1 epsilon=8,50
  m1.known-projection-rank1.delta dim=1000000 rank=64,999999 noise_multiplier=1000 epsilon=0,1
  m1.known-projection-rank1.delta dim=1 rank=1 noise_multiplier=10 epsilon=1
* m1.operator-norm.epsilon dim=1000 rank=64 noise_multiplier=20 delta=1e-5,1e-100
  m1.operator-norm.delta dim=1000 rank=64 noise_multiplier=20 split=optimal epsilon=0,8,50
  m1.operator-norm.epsilon dim=1000000 rank=1,999999 noise_multiplier=1000 steps=1,1000000 delta=1e-5
* m1.secret-projection.delta dim=1000 rank=1 columns=1 misalignment=1.25e-3 noise_multiplier=1 epsilon=1,0
  m1.secret-projection.delta dim=1000 rank=64 columns=1 misalignment=1.25e-3 noise_multiplier=20 epsilon=0.18
  m1.secret-projection.delta dim=2 rank=4 columns=1 misalignment=1e-12,1.9 noise_multiplier=1 epsilon=1
  m1.secret-projection.delta dim=1000000 rank=1000000 columns=1 misalignment=1e-6 noise_multiplier=20 epsilon=0.2
* m1.column-exact.delta dim=100 rank=4 span_dim=8 residual_misalignment=1e-4 noise_multiplier=50 epsilon=0.5
  m1.column-exact.delta dim=1000 rank=64 span_dim=0 residual_misalignment=1e-12,8e-6 noise_multiplier=20 epsilon=1e-3
* m1.column.epsilon dim=1000 rank=64 span_dim=4 residual_misalignment=8e-6 noise_multiplier=20 split=0.5,0.1 delta=1e-5
  m1.column.epsilon dim=1000 rank=64 span_dim=4 residual_misalignment=1e-12 noise_multiplier=20 split=0.5 delta=1e-30
  m1.column.epsilon dim=1000000 rank=512 span_dim=4 residual_misalignment=1e-12 noise_multiplier=99 split=0.5 delta=0.01
  m1.column.epsilon dim=40 rank=2 span_dim=4 residual_misalignment=1e-6 noise_multiplier=1e4 split=0.5 delta=1e-5
* m1.residual.delta dim=1000 rank=64 span_dim=0 residual_misalignment=8e-6 noise_multiplier=20 epsilon=1,0.1
  m1.residual.delta dim=1000 rank=1,999 span_dim=0 residual_misalignment=1e-12 noise_multiplier=20 epsilon=0.001
* m1.column-published.epsilon dim=40 rank=2 span_dim=4 residual_misalignment=1e-6 noise_multiplier=1e4 delta=1e-5
  m1.column-published.epsilon dim=1000 rank=64 span_dim=4 residual_misalignment=1e-6 noise_multiplier=1e4 delta=1e-5
* m2.rank-free.delta dim=2048 rank=16 noise_multiplier=0.3814 epsilon=1,0,0.05,50
  m2.rank-free.delta dim=1000000 rank=1 noise_multiplier=0.001,1,1000 epsilon=0,1,50
  m2.rank-free.delta dim=1000000 rank=999999 noise_multiplier=0.1,1 epsilon=0,1,50
  m2.rank-free.delta dim=1000000 rank=64,500000 noise_multiplier=0.01 epsilon=1,50
  m2.rank-free.delta dim=2 rank=1 noise_multiplier=0.01,1,1000 epsilon=0,1
  m2.rank-free.delta dim=2048 rank=16 noise_multiplier=0.2 sampling_rate=0.01 epsilon=1
  m2.rank-free.delta dim=100 rank=100 noise_multiplier=1 epsilon=1
* m2.rank-free.delta dim=2048 rank=16 noise_multiplier=0.3814 adaptive_clipping_sigma=2,0.25 epsilon=1,0,50
  m2.rank-free.delta dim=2 rank=1 noise_multiplier=1,1000 adaptive_clipping_sigma=0.5,100 epsilon=1,8
  m2.rank-free.delta dim=2048 rank=16 noise_multiplier=0.2 adaptive_clipping_sigma=2 sampling_rate=0.01 epsilon=1
* m2.exact-rank1.delta dim=2048 rank=16 noise_multiplier=0.3814 epsilon=1,0,50
  m2.exact-rank1.delta dim=1000000 rank=1 noise_multiplier=0.001,1,1000 epsilon=0,1,50
  m2.exact-rank1.delta dim=1000000 rank=999999 noise_multiplier=0.1 epsilon=0,50
  m2.exact-rank1.delta dim=1000000 rank=64,500000 noise_multiplier=0.01 epsilon=50
  m2.exact-rank1.delta dim=2 rank=1 noise_multiplier=0.01,1000 epsilon=0,1
  m2.exact-rank1.delta dim=2048 rank=16 noise_multiplier=0.3814,0.02 adaptive_clipping_sigma=2,20 epsilon=1,0,50
* m2.mixture-rdp.delta dim=2048 rank=16 noise_multiplier=0.3814 epsilon=1,8,50
  m2.mixture-rdp.delta dim=2048 rank=16 noise_multiplier=10 steps=1000000 epsilon=50,1000
  m2.mixture-rdp.delta dim=2048 rank=16 noise_multiplier=0.3814 sampling_rate=1e-4 steps=1000000 epsilon=1,8
  m2.mixture-rdp.delta dim=1000000 rank=64,999999 noise_multiplier=0.5 steps=1 epsilon=8
  m2.mixture-rdp.delta dim=1000 rank=1 noise_multiplier=0.5 steps=1000 epsilon=8
  m2.mixture-rdp.delta dim=2048 rank=16 noise_multiplier=0.3814 adaptive_clipping_sigma=2 epsilon=8
  m2.mixture-rdp.delta dim=2048 rank=16 noise_multiplier=1 adaptive_clipping_sigma=5 sampling_rate=0.1 steps=9 epsilon=1
  m2.gaussian.delta dim=100 rank=10 noise_multiplier=1 adaptive_clipping_sigma=1 steps=10 epsilon=8
* m2.good-event-q.delta dim=2048 rank=16 change_rank=10 noise_multiplier=0.3814 steps=10 epsilon=4
  m2.good-event-q.epsilon dim=2048 rank=16 change_rank=10 noise_multiplier=0.3814 steps=10,1000000 split=even delta=1e-5
* m2.good-event.delta dim=2048 rank=16 change_rank=10 noise_multiplier=0.3814 steps=1,1000 epsilon=4,50
  m2.good-event.epsilon dim=1000000 rank=1,64 change_rank=10 noise_multiplier=0.1 steps=1,1000000 split=even delta=1e-5
* m2.beta-tail-sharp.delta dim=2048 rank=16 change_rank=10 noise_multiplier=0.7787 epsilon=1,0,50
  m2.beta-tail-sharp.delta dim=1000000 rank=1,64,999999 change_rank=1 noise_multiplier=0.1 epsilon=0,1,50
* m2.beta-tail.delta dim=2048 rank=16 change_rank=10 noise_multiplier=0.7787 epsilon=1,50
  m2.beta-tail.delta dim=1000000 rank=1,64,999999 change_rank=1 noise_multiplier=0.1 epsilon=1,50
* m2.gaussian.delta dim=2048 rank=16 noise_multiplier=1 epsilon=1,0,50
* wishart.exact.delta dim=768 rank=16 misalignment=1e-4 epsilon=8,0
  wishart.exact.delta dim=1000000 rank=64 misalignment=1e-12 epsilon=5e-4,5e-3
  wishart.exact.delta dim=1000000 rank=1,999999 misalignment=1e-12 epsilon=0.001
  wishart.exact.delta dim=1000 rank=1,16,999 misalignment=1e-12,8e-6 epsilon=1e-4,1
  wishart.exact.delta dim=2 rank=1 misalignment=1e-12,1e-3,1.5 epsilon=0,50
  wishart.exact.delta dim=50 rank=2000 misalignment=1e-4 epsilon=0.1
  wishart.exact.delta dim=20 rank=4 misalignment=1e-3 norm_ratio=1.1 epsilon=1
* wishart.quantile.epsilon dim=1000 rank=16 misalignment=8e-6 delta=1e-5,1e-100
  wishart.quantile.epsilon dim=1000000 rank=1,64,999999 misalignment=1e-12 delta=1e-5
  wishart.quantile.epsilon dim=1000 rank=64 misalignment=1e-12 steps=1000000 delta=1e-5
  wishart.quantile.epsilon dim=1000 rank=16 misalignment=8e-6 split=optimal delta=1e-5
* wishart.quantile-sharp.epsilon dim=1000 rank=16 misalignment=8e-6 delta=1e-5,1e-100
  wishart.quantile-sharp.epsilon dim=1000000 rank=1,64,999999 misalignment=1e-12 delta=1e-5
  wishart.quantile-sharp.epsilon dim=1000 rank=16 misalignment=8e-6 split=optimal delta=1e-5
* wishart.early.epsilon dim=50 rank=40 misalignment=1e-12 t=8 eta=0.001 R=260
  wishart.early.delta dim=50 rank=40 misalignment=1e-12 t=8 eta=0.001 R=260,400
  wishart.early.epsilon dim=50 rank=40 misalignment=1e-12 delta=1e-5
* wishart.early-exact-tail.epsilon dim=50 rank=40 misalignment=1e-12 delta=1e-5
* wishart.preprocess.gain dim=1000000 misalignment=0.9 gamma=1 beta=1e-6
* sketch.rdp-best.delta rank=16 gamma=1000 epsilon=0.05,1
  sketch.rdp-best.delta rank=16 gamma=3,1e6 epsilon=8
  sketch.rdp-best.delta rank=1,1000000 gamma=1e5 epsilon=0.01
  sketch.rdp-best.delta rank=16 gamma=1e6 steps=1000000 epsilon=0.1
* sketch.exact-rank1.delta rank=16 gamma=1000 epsilon=0.05,0,1
  sketch.exact-rank1.delta rank=1,1000000 gamma=0.1,1e6 epsilon=0,0.01
  sketch.exact-rank1.delta rank=1 gamma=1e4 steps=1000000 epsilon=0.5,50
* sketch.rdp-tight.delta rank=16 gamma=1000 epsilon=0.05,1
  sketch.rdp-tight.delta rank=1,1000000 gamma=1.5,1e6 epsilon=8
* sketch.rdp.delta rank=16 gamma=1000 eigenvalues=768 epsilon=1,8
  sketch.rdp order=2,50,999 rank=16 gamma=1000 eigenvalues=768
* sketch.tcdp.delta rank=16 gamma=1000 eigenvalues=768 epsilon=1,8
  sketch.tcdp.delta rank=16 gamma=3 eigenvalues=1 epsilon=1,50
  sketch.tcdp.delta rank=16 gamma=1e6 eigenvalues=768 steps=1000000 epsilon=1
* sketch.lora-one-step.delta rank=16 frobenius_bound=1 sensitivity=0.01 noise_sigma=1 epsilon=0.05,1
* sketch.lora-by-design.delta rank=9 frobenius_bound=2 sensitivity=.01 noise_sigma=1 step_smoothness=1 steps=2 epsilon=1
* sketch-public.rank-free.delta rank=16 noise_multiplier=1 epsilon=1,0,50
  sketch-public.rank-free.delta rank=1,1000000 noise_multiplier=0.1,10 epsilon=0,1
* sketch-public.exact-rank1.delta rank=16 noise_multiplier=1 epsilon=1,0,50
  sketch-public.exact-rank1.delta rank=1,1000000 noise_multiplier=0.1,10 epsilon=0,1
* sketch-public.operator-norm.epsilon rank=16 noise_multiplier=1 delta=1e-5
  sketch-public.operator-norm.delta rank=16 noise_multiplier=1 split=optimal epsilon=1,50
  sketch-public.operator-norm.epsilon rank=1,1000000 noise_multiplier=100 steps=1,1000000 delta=1e-5
"""
# bounds that evaluate no number
WITHOUT = {
    "wishart.early-corollary": "no formula: its constant is open",
    "wishart.rp-gd": "no formula: refuted, its constant is open",
    "wishart-matrix.early-matrix": "no formula: refuted",
}
REFUTED = ("m1.column-published", "sketch.lora-by-design")  # evaluated with ``allow_refuted``

# beginnings of settings with parameters that only :func:`privproj.evaluate` has
PARTIAL = (
    "rule.",
    "wishart.preprocess",
    "sketch.rdp order",
    "wishart.early.epsilon dim=50 rank=40 misalignment=1e-12 t",
    "wishart.early.delta dim=50 rank=40 misalignment=1e-12 t",
)


@dataclass(frozen=True)
class Setting:
    """One query."""

    quantity: str
    parameters: tuple[tuple[str, float | int | str], ...]

    def __str__(self):
        return " ".join((self.quantity, *(f"{name}={value}" for name, value in self.parameters)))

    @property
    def bound(self):
        """``mechanism.bound``."""
        return ".".join(self.quantity.split(".")[:2])

    @property
    def has_every_entry_point(self):
        """False if only :func:`privproj.evaluate` has all parameters."""
        return not str(self).startswith(PARTIAL)

    def as_entry(self):
        """Return the query and the entry of a file, with the number of steps if it is sampled."""
        mechanism, bound, query = self.quantity.split(".")
        parameters = dict(self.parameters)
        steps = {"steps": 1} if "sampling_rate" in parameters else {}
        return query, {"mechanism": mechanism, "bound": bound, **steps, **parameters}


def plain(text):
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def settings(quick=False):
    selected = []
    grids = "\n".join((SETTINGS.strip(), *(feature.SETTINGS.strip() for feature in FEATURES)))
    for entry in grids.splitlines():
        quantity, *assignments = entry.lstrip("* ").split()
        names = [word.split("=")[0] for word in assignments]
        values = [[plain(x) for x in word.split("=")[1].split(",")] for word in assignments]
        grid = [Setting(quantity, tuple(zip(names, point, strict=True))) for point in itertools.product(*values)]
        selected += grid if not quick else grid[:1] * entry.startswith("*")
    return selected
