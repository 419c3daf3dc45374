"""Random queries: mechanism, parameters, bound, sampling, relation and target, extreme values included.

One generator, :func:`random_query`, serves hypothesis (:func:`queries`, which shrinks failures) and a plain seed
(:func:`query_of_seed`, for benchmarks and the golden comparison).
"""

import math
import random
from bisect import bisect
from dataclasses import asdict, dataclass, field
from itertools import accumulate

from hypothesis import strategies as st

import privproj
from privproj.mechanisms.bound import GUARANTEES
from privproj.mechanisms.registry import registry
from tests.differential.draws import log_uniform, log_uniform_integer, noise_multiplier
from tests.differential.features import feature_dict, feature_items

BOUND_NAMES = tuple((bound.mechanism.name, bound.name) for bound in registry())
MECHANISMS = {bound.mechanism.name: bound.mechanism for bound in registry()}
EXCLUDED = {
    ("m1", "column-published"),  # refuted for some parameters
    ("m1", "residual-published"),  # refuted for some parameters
    ("sketch", "lora-one-step"),  # another name of one release
    ("sketch", "one-vector"),  # takes other parameters
}
# Relative frequency of a bound among those of its mechanism, where it is not 1.
WEIGHTS = {("gaussian", "analytic"): 3, ("m2", "rank-free"): 2, ("m2", "exact-rank1"): 2, ("wishart", "exact"): 2,
           **feature_dict("WEIGHTS")}  # fmt: skip
BOUNDS: dict[str, list[str]] = {}  # the bounds of each mechanism that are guarantees
for bound in registry():
    line = bound.mechanism.name, bound.name
    if line not in EXCLUDED and bound.status in GUARANTEES:
        BOUNDS.setdefault(line[0], []).extend([line[1]] * WEIGHTS.get(line, 1))
# Relative frequency of each mechanism.
SHARE = {"gaussian": 24, "m2": 28, "laplace": 8, "wishart": 16, "m1": 10, "sketch": 7, "sketch-public": 5,
         **feature_dict("SHARE")}  # fmt: skip
# Mechanisms of the core without an entry in SHARE, whose parameters are those of the example with another noise.
OTHERS = [
    name for name in BOUNDS if name not in SHARE and MECHANISMS[name].__module__.startswith("privproj.mechanisms")
]
SHARE |= dict.fromkeys(OTHERS, 5)
# Bounds without a subsampled form. One query in twenty is subsampled all the same, and may be unsupported.
UNSAMPLED = {"two-sided", "classical", "classical-2", "operator-norm", "column", "quantile-sharp", "quantile", "early",
         "early-exact-tail", "rdp-best", "rdp-tight", "rdp", "tcdp", "zcdp", "gdp", "column-exact"}  # fmt: skip


GROUPED = {"analytic", "rank-free", "known-projection", "gaussian", *feature_items("GROUPED")}  # group privacy
NO_REPLACE = set(feature_items("NO_REPLACE"))  # bounds of features for one record more or less alone


@dataclass
class Query:
    """A query in plain values; ``query`` names the quantity to compute, which ``parameters`` then lacks."""

    seed: int
    query: str
    mechanism: str
    parameters: dict
    bound: str
    run: dict = field(default_factory=dict)
    epsilon: float | None = None
    delta: float | None = None

    @property
    def kind(self):
        """Return the row of the report that this query belongs to."""
        composed = "run" if self.run.get("steps", 1) > 1 or self.run.get("sampling_rate", 1) < 1 else "one"
        return f"{self.mechanism} {self.bound} {composed}"

    def plain(self):
        return asdict(self)

    def command(self):
        """Return the equivalent command line."""
        arguments = ["privproj", self.query, self.mechanism, "--bound", self.bound]
        for name, value in {**self.parameters, **self.run}.items():
            for each in value if name == "layers" else [value]:
                option = {"layers": "layer"}.get(name, name).replace("_", "-")
                arguments += (
                    [f"--{option}", each if isinstance(each, str) else repr(each)]
                    if value is not True
                    else [f"--{option}"]
                )
        for name in ("epsilon", "delta"):
            if getattr(self, name) is not None:
                arguments += [f"--{name}", repr(getattr(self, name))]
        return " ".join(arguments)

    def built(self, **changes):
        """Return the mechanism."""
        options = {**self.parameters, **changes}
        if "layers" in options:
            options["layers"] = tuple(layer(text) for text in options["layers"])
        return MECHANISMS[self.mechanism](**options)


def layer(text):
    """Parse ``DxRxN@SHARE``."""
    shape, _, share = text.partition("@")
    dim, rank, count = (int(part) for part in shape.split("x"))
    return privproj.Layer(dim=dim, rank=rank, count=count, share=float(share) if share else None)


def random_query(rng, seed=0):
    """Draw a query from a ``random.Random``."""
    # As rng.choices draws for a real Random; that of hypothesis ignores the weights.
    limits = list(accumulate(SHARE.values()))
    name = list(SHARE)[bisect(limits, rng.random() * limits[-1], 0, len(limits) - 1)]
    bound = rng.choice(BOUNDS[name])
    query = Query(seed, "epsilon", name, {}, bound)
    query.run = training_run(rng, query)
    query.parameters = PARAMETERS[name](rng, query)
    add_target(rng, query)
    remove_unknown(rng, query)
    return query


def query_of_seed(seed):
    """Return the query of a seed."""
    return random_query(random.Random(seed), seed)


def queries():
    """Return the strategy of all queries, drawn by seed: hypothesis would bias the frequencies of ``SHARE``."""
    return st.integers(0, 2**32 - 1).map(query_of_seed)


def training_run(rng, query):
    """Draw steps, sampling rate, sampling scheme and relation."""
    run = {}
    if rng.random() < 0.35:
        return relation(rng, query, run)
    is_unsampled = query.bound in UNSAMPLED and rng.random() < 0.95
    kind = rng.random()
    if kind < 0.35 or is_unsampled:
        run["steps"] = log_uniform_integer(rng, 2, 2000 if query.mechanism == "wishart" else 10**5)
    else:
        run["steps"] = log_uniform_integer(rng, 1, 10**5)
        run["sampling_rate"] = log_uniform(rng, *rng.choice([(1e-3, 1.0), (1e-5, 1e-2), (1e-9, 1e-4)]))
        of_one = query.bound == "exact-rank1" or (query.mechanism, query.bound) in NO_REPLACE
        fixed = query.mechanism in ("wishart", "sketch") or (rng.random() < 0.2 and not of_one)
        if fixed and query.bound != "mixture-rdp":
            run["sampling"] = "fixed"
            return run
    return relation(rng, query, run)


def relation(rng, query, run):
    """Add a relation or a group size that the bound supports."""
    choice = rng.random()
    if (query.mechanism, query.bound) in NO_REPLACE:
        return run | ({"relation": "zero-out"} if choice < 0.1 else {})
    if query.mechanism in ("wishart", "sketch"):
        return run
    if choice < 0.1 and "sampling_rate" not in run and query.bound != "exact-rank1":
        run["relation"] = "replace"
    elif choice < 0.2:
        run["relation"] = "zero-out"
    elif choice < 0.28 and query.bound in GROUPED:
        run["group_size"] = rng.choice([2, 3, 10])
    return run


def gaussian(rng, query):
    return counted(rng, query, {"noise_multiplier": noise_multiplier(rng, query)})


def counted(rng, query, parameters):
    """Add adaptive clipping to one query in eight, at a privacy cost of at most that of the sum."""
    taken = query.bound not in ("good-event-q", "good-event", "beta-tail-sharp", "beta-tail")
    if rng.random() < 0.125 and taken and parameters.get("clipping") != "per-layer":
        parameters["adaptive_clipping_sigma"] = float(
            f"{parameters['noise_multiplier'] * log_uniform(rng, 0.5, 50.0):.6g}"
        )
    return parameters


def laplace(rng, query):
    return {"noise_multiplier": noise_multiplier(rng, query, gain=rng.choice([1.0, 3.0]))}


def m2(rng, query):
    if query.bound not in ("exact-rank1",) and rng.random() < 0.15:
        return counted(rng, query, layered(rng, query))
    dim = log_uniform_integer(rng, 1, 10**6)
    rank = rng.choice([1, dim, log_uniform_integer(rng, 1, dim), log_uniform_integer(rng, 1, min(dim, 64))])
    energy = max((rank / dim) ** 0.5, 0.02)
    parameters = {"dim": dim, "rank": rank, "noise_multiplier": noise_multiplier(rng, query, gain=energy)}
    if query.bound in ("beta-tail", "beta-tail-sharp", "good-event", "good-event-q"):
        parameters["change_rank"] = rng.randint(1, min(dim, 10))
    return counted(rng, query, parameters)


def layered(rng, query):
    """Draw one to three layer shapes, with joint or per-layer clipping."""
    shapes = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        dim = log_uniform_integer(rng, 2, 4096)
        shapes.append((dim, log_uniform_integer(rng, 1, min(dim, 64)), rng.choice([1, 1, 2, 12])))
    parameters = {"layers": [f"{d}x{r}x{n}" for d, r, n in shapes]}
    parameters["noise_multiplier"] = noise_multiplier(rng, query, gain=max((r / d) ** 0.5 for d, r, _ in shapes))
    if rng.random() < 0.5:
        parameters["clipping"] = "per-layer"
    if query.bound in ("beta-tail", "beta-tail-sharp", "good-event", "good-event-q"):
        parameters["change_rank"] = 1
    return parameters


def m1(rng, query):
    dim, rank = log_uniform_integer(rng, 2, 10**5), log_uniform_integer(rng, 1, 10**5)
    parameters = {
        "dim": dim,
        "rank": rank,
        "noise_multiplier": noise_multiplier(rng, query, gain=max(1.0, (dim / rank) ** 0.5)),
    }
    if query.bound == "secret-projection":
        parameters |= {"columns": 1, "misalignment": log_uniform(rng, 1e-8, 1.9)}
    if query.bound in ("residual", "column-exact", "column"):
        parameters["span_dim"] = (
            0 if query.bound == "residual" else rng.choice([0, log_uniform_integer(rng, 1, dim - 1)])
        )
        parameters["residual_misalignment"] = log_uniform(rng, 1e-10, 1e-1) / dim
        if rng.random() < 0.4:
            parameters |= {"residual_norm": 1.0, "other_residual_norm": 1.0 + log_uniform(rng, 1e-6, 0.1)}
    return parameters


def wishart(rng, query):
    dim, rank = log_uniform_integer(rng, 1, 10**6), log_uniform_integer(rng, 1, 10**6)
    if rng.random() < 0.5:
        dim, rank = log_uniform_integer(rng, 2, 2000), log_uniform_integer(rng, 1, 256)
    steps = query.run.get("steps", 1) * query.run.get("sampling_rate", 1.0) ** 2
    scale = 1.0 / (max(dim, 16) * math.sqrt(max(steps, 1.0)))
    parameters = {"dim": dim, "rank": rank, "misalignment": min(1.9, max(1e-15, scale * log_uniform(rng, 1e-6, 3.0)))}
    if rng.random() < 0.1:
        parameters["misalignment"] = rng.choice([1e-12, 1e-4, 0.5, 1.5])
    if query.bound == "exact" and query.run.get("steps", 1) == 1 and rng.random() < 0.25:
        parameters["norm_ratio"] = 1.0 + log_uniform(rng, 1e-6, 0.3)
    return parameters


def sketch(rng, query):
    rank = log_uniform_integer(rng, 1, 10**4)
    parameters = {
        "rank": rank,
        "gamma": (1 + math.sqrt(rank * query.run.get("steps", 1))) * log_uniform(rng, 0.3, 300.0),
    }
    if query.bound == "exact-rank1":
        query.run.pop("sampling_rate", None), query.run.pop("sampling", None)
    if query.bound in ("rdp", "tcdp"):
        parameters["eigenvalues"] = rng.choice([1, 8, 768])
    return parameters


def sketch_public(rng, query):
    rank = log_uniform_integer(rng, 1, 10**5)
    return {"rank": rank, "noise_multiplier": noise_multiplier(rng, query)}


def example_with_other_noise(rng, query):
    pairs = (pair.split("=") for pair in MECHANISMS[query.mechanism].example.split())
    parameters = {name: int(value) if value.isdigit() else float(value) for name, value in pairs}
    return parameters | ({"noise_multiplier": noise_multiplier(rng, query)} if "noise_multiplier" in parameters else {})


PARAMETERS = {"gaussian": gaussian, "laplace": laplace, "m2": m2, "m1": m1, "wishart": wishart, "sketch": sketch,
              "sketch-public": sketch_public,
              **feature_dict("PARAMETERS"), **dict.fromkeys(OTHERS, example_with_other_noise)}  # fmt: skip


def add_target(rng, query):
    """Draw the delta or the epsilon of the query."""
    single = "steps" not in query.run and "sampling_rate" not in query.run
    low = -100 if single and rng.random() < 0.15 else -12
    if rng.random() < 0.6:
        query.delta = rng.choice([1e-5, 1e-6, 1e-12]) if rng.random() < 0.3 else 10.0 ** rng.uniform(low, -2)
    else:
        query.query = "delta"
        query.epsilon = rng.choice([0.0, 50.0]) if rng.random() < 0.15 else log_uniform(rng, 1e-3, 8.0)


def remove_unknown(rng, query):
    """Turn one query in five into a calibration: remove a parameter and set both epsilon and delta."""
    if rng.random() > 0.2:
        return
    choices = ["steps"] * (query.run.get("steps", 1) > 1)
    choices += ["rate"] * ("sampling_rate" in query.run)
    choices += ["sigma"] * ("noise_multiplier" in query.parameters)
    choices += ["rank"] * (
        "rank" in query.parameters and "span_dim" not in query.parameters and "change_rank" not in query.parameters
    )
    choices += ["misalignment"] * (query.mechanism == "wishart")
    if not choices:
        return
    query.query = rng.choice(choices)
    query.delta = query.delta or 10.0 ** rng.uniform(-10, -3)
    query.epsilon = query.epsilon or log_uniform(rng, 0.05, 10.0)
    query.run.pop({"steps": "steps", "rate": "sampling_rate"}.get(query.query, ""), None)
    query.parameters.pop(
        {"sigma": "noise_multiplier", "rank": "rank", "misalignment": "misalignment"}.get(query.query, ""), None
    )


def is_quick(query):
    """Return whether a query with all its laws takes a fraction of a second: one step, or a run without a search."""
    single = "steps" not in query.run and "sampling_rate" not in query.run
    slow = {"mixture-rdp", "good-event", "good-event-q", "column", "early", "early-exact-tail", "secret-projection"}
    if query.bound in slow or "norm_ratio" in query.parameters or "layers" in query.parameters:
        return False
    if query.query not in ("epsilon", "delta"):
        return single and query.query == "sigma" and query.mechanism in ("gaussian", "laplace", "sketch-public")
    if single:
        return "span_dim" not in query.parameters
    rate = query.run.get("sampling_rate", 1.0)
    easy = query.mechanism in ("gaussian", "laplace") or query.bound == "exact-rank1"
    return easy and (rate > 1e-3 or rate < 1e-7 or query.bound in UNSAMPLED)


def is_composed(query):
    """Return whether the query composes steps on a grid, which takes longest among the quick queries."""
    return query.kind.endswith("run") and query.bound not in UNSAMPLED


def quick_queries():
    """Return the strategy of quick queries, of which one in fourteen is composed on a discretization grid."""
    quick = queries().filter(is_quick)
    one_step, composed = quick.filter(lambda query: not is_composed(query)), quick.filter(is_composed)
    return st.integers(1, 14).flatmap(lambda n: composed if n == 14 else one_step)
