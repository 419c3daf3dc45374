"""Random questions: any mechanism, bound, sampling, relation and query, hard corners included; one seed each."""

import math
import random
from dataclasses import asdict, dataclass, field

import privproj
from privproj.mechanisms.bound import GUARANTEES
from privproj.mechanisms.registry import bound_names, find_bound, mechanism_named

MECHANISMS = {name: mechanism_named(name) for name, _ in bound_names()}
NOT_ASKED = {("m1", "column-published"), ("sketch", "lora-one-step")}
"""Refuted for some parameters, and one release under another name."""
OFTEN = {("gaussian", "analytic"): 3, ("m2", "rank-free"): 2, ("m2", "exact-rank1"): 2, ("wishart", "exact"): 2,
         ("jl-clip", "exact"): 2}  # fmt: skip
"""How often some bounds are asked where others of their mechanism are asked once."""
BOUNDS: dict[str, list[str]] = {}
"""What is asked of each mechanism: all that is a guarantee."""
for line in bound_names():
    if line not in NOT_ASKED and find_bound(MECHANISMS[line[0]], line[1]).status in GUARANTEES:
        BOUNDS.setdefault(line[0], []).extend([line[1]] * OFTEN.get(line, 1))
SHARE = {"gaussian": 24, "m2": 28, "laplace": 8, "wishart": 16, "m1": 10, "sketch": 7, "sketch-public": 5,
         "jl-clip": 2}  # fmt: skip
"""Questions of each mechanism, in a hundred; of ``mixing`` only fixed ones are asked (``test_harness.py``)."""
RULES = {"two-sided", "classical", "classical-2", "operator-norm", "column", "quantile-sharp", "quantile", "early",
         "early-exact-tail", "rdp-best", "rdp-tight", "rdp", "tcdp", "zcdp", "gdp", "column-exact"}  # fmt: skip
"""Bounds without a sampled form (they may be refused; one in twenty asks all the same)."""


@dataclass
class Question:
    """What is asked, in plain values; ``query`` finds the parameter that ``parameters`` leaves out."""

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
        """How it is counted."""
        composed = "run" if self.run.get("steps", 1) > 1 or self.run.get("sampling_rate", 1) < 1 else "one"
        return f"{self.mechanism} {self.bound} {composed}"

    def plain(self):
        return asdict(self)

    def command(self):
        """What to type."""
        words = ["privproj", self.query, self.mechanism, "--bound", self.bound]
        for name, value in {**self.parameters, **self.run}.items():
            for each in value if name == "layers" else [value]:
                option = {"layers": "layer"}.get(name, name).replace("_", "-")
                words += (
                    [f"--{option}", each if isinstance(each, str) else repr(each)]
                    if value is not True
                    else [f"--{option}"]
                )
        for name in ("epsilon", "delta"):
            if getattr(self, name) is not None:
                words += [f"--{name}", repr(getattr(self, name))]
        return " ".join(words)

    def built(self, **changes):
        """The mechanism."""
        options = {**self.parameters, **changes}
        if "layers" in options:
            options["layers"] = tuple(layer(text) for text in options["layers"])
        return MECHANISMS[self.mechanism](**options)


def layer(text):
    """``DxRxN@SHARE``."""
    shape, _, share = text.partition("@")
    dim, rank, count = (int(part) for part in shape.split("x"))
    return privproj.Layer(dim=dim, rank=rank, count=count, share=float(share) if share else None)


def spread(rng, low, high):
    """Log-uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def size(rng, low, high):
    """A log-uniform whole number, the ends included now and then."""
    return rng.choice([low, high]) if rng.random() < 0.1 else round(spread(rng, low, high))


def question(seed):
    """The question of this seed."""
    rng = random.Random(seed)
    name = rng.choices(list(SHARE), list(SHARE.values()))[0]
    bound = rng.choice(BOUNDS[name])
    asked = Question(seed, "epsilon", name, {}, bound)
    asked.run = run(rng, asked)
    asked.parameters = PARAMETERS[name](rng, asked)
    target(rng, asked)
    inverse(rng, asked)
    return asked


def run(rng, asked):
    """Steps, rate, sampling and relation."""
    found = {}
    if rng.random() < 0.35:
        return relation(rng, asked, found)
    rule = asked.bound in RULES and rng.random() < 0.95
    kind = rng.random()
    if kind < 0.35 or rule:
        found["steps"] = size(rng, 2, 2000 if asked.mechanism == "wishart" else 10**5)
    else:
        found["steps"] = size(rng, 1, 10**5)
        found["sampling_rate"] = spread(rng, *rng.choice([(1e-3, 1.0), (1e-5, 1e-2), (1e-9, 1e-4)]))
        of_one = asked.bound == "exact-rank1" or (asked.mechanism == "jl-clip" and asked.bound == "exact")
        fixed = asked.mechanism in ("wishart", "sketch") or (rng.random() < 0.2 and not of_one)
        if fixed and asked.bound != "mixture-rdp":
            found["sampling"] = "fixed"
            return found
    return relation(rng, asked, found)


def relation(rng, asked, found):
    """A relation that the bound may have."""
    choice = rng.random()
    if asked.mechanism == "jl-clip" and asked.bound == "exact":
        return found | ({"relation": "zero-out"} if choice < 0.1 else {})
    if asked.mechanism in ("wishart", "sketch"):
        return found
    if choice < 0.1 and "sampling_rate" not in found and asked.bound != "exact-rank1":
        found["relation"] = "replace"
    elif choice < 0.2:
        found["relation"] = "zero-out"
    elif choice < 0.28 and asked.bound in ("analytic", "rank-free", "known-projection", "gaussian", "any-records"):
        found["group_size"] = rng.choice([2, 3, 10])
    return found


def noise(rng, asked, gain=1.0):
    """A noise multiplier of the order at which the run has an epsilon around 1 (from 1e-3 to 50)."""
    steps, rate = asked.run.get("steps", 1), asked.run.get("sampling_rate", 1.0)
    group = asked.run.get("group_size", 1)
    level = max(rate * math.sqrt(steps), 1e-3) if rate < 1.0 else math.sqrt(steps)
    return float(f"{max(0.2, level) * group * gain * spread(rng, 0.4, 12.0):.6g}")


def gaussian(rng, asked):
    return counted(rng, asked, {"noise_multiplier": noise(rng, asked)})


def counted(rng, asked, found):
    """One question in eight is about a clip that adapts; its count costs up to as much as the sum."""
    taken = asked.bound not in ("good-event-q", "good-event", "beta-tail-sharp", "beta-tail")
    if rng.random() < 0.125 and taken and found.get("clipping") != "per-layer":
        found["adaptive_clipping_sigma"] = float(f"{found['noise_multiplier'] * spread(rng, 0.5, 50.0):.6g}")
    return found


def laplace(rng, asked):
    return {"noise_multiplier": noise(rng, asked, gain=rng.choice([1.0, 3.0]))}


def m2(rng, asked):
    if asked.bound not in ("exact-rank1",) and rng.random() < 0.15:
        return counted(rng, asked, layered(rng, asked))
    dim = size(rng, 1, 10**6)
    rank = rng.choice([1, dim, size(rng, 1, dim), size(rng, 1, min(dim, 64))])
    energy = max((rank / dim) ** 0.5, 0.02)
    found = {"dim": dim, "rank": rank, "noise_multiplier": noise(rng, asked, gain=energy)}
    if asked.bound in ("beta-tail", "beta-tail-sharp", "good-event", "good-event-q"):
        found["change_rank"] = rng.randint(1, min(dim, 10))
    return counted(rng, asked, found)


def layered(rng, asked):
    """Two or three shapes, one clip or each its own."""
    shapes = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        dim = size(rng, 2, 4096)
        shapes.append((dim, size(rng, 1, min(dim, 64)), rng.choice([1, 1, 2, 12])))
    found = {"layers": [f"{d}x{r}x{n}" for d, r, n in shapes]}
    found["noise_multiplier"] = noise(rng, asked, gain=max((r / d) ** 0.5 for d, r, _ in shapes))
    if rng.random() < 0.5:
        found["clipping"] = "per-layer"
    if asked.bound in ("beta-tail", "beta-tail-sharp", "good-event", "good-event-q"):
        found["change_rank"] = 1
    return found


def m1(rng, asked):
    dim, rank = size(rng, 2, 10**5), size(rng, 1, 10**5)
    found = {"dim": dim, "rank": rank, "noise_multiplier": noise(rng, asked, gain=max(1.0, (dim / rank) ** 0.5))}
    if asked.bound == "secret-projection":
        found |= {"columns": 1, "misalignment": spread(rng, 1e-8, 1.9)}
    if asked.bound in ("residual", "column-exact", "column"):
        found["span_dim"] = 0 if asked.bound == "residual" else rng.choice([0, size(rng, 1, dim - 1)])
        found["residual_misalignment"] = spread(rng, 1e-10, 1e-1) / dim
        if rng.random() < 0.4:
            found |= {"residual_norm": 1.0, "other_residual_norm": 1.0 + spread(rng, 1e-6, 0.1)}
    return found


def wishart(rng, asked):
    dim, rank = size(rng, 1, 10**6), size(rng, 1, 10**6)
    if rng.random() < 0.5:
        dim, rank = size(rng, 2, 2000), size(rng, 1, 256)
    steps = asked.run.get("steps", 1) * asked.run.get("sampling_rate", 1.0) ** 2
    scale = 1.0 / (max(dim, 16) * math.sqrt(max(steps, 1.0)))
    found = {"dim": dim, "rank": rank, "misalignment": min(1.9, max(1e-15, scale * spread(rng, 1e-6, 3.0)))}
    if rng.random() < 0.1:
        found["misalignment"] = rng.choice([1e-12, 1e-4, 0.5, 1.5])
    if asked.bound == "exact" and asked.run.get("steps", 1) == 1 and rng.random() < 0.25:
        found["norm_ratio"] = 1.0 + spread(rng, 1e-6, 0.3)
    return found


def sketch(rng, asked):
    rank = size(rng, 1, 10**4)
    found = {"rank": rank, "gamma": (1 + math.sqrt(rank * asked.run.get("steps", 1))) * spread(rng, 0.3, 300.0)}
    if asked.bound == "exact-rank1":
        asked.run.pop("sampling_rate", None), asked.run.pop("sampling", None)
    if asked.bound in ("rdp", "tcdp"):
        found["eigenvalues"] = rng.choice([1, 8, 768])
    return found


def sketch_public(rng, asked):
    rank = size(rng, 1, 10**5)
    return {"rank": rank, "noise_multiplier": noise(rng, asked)}


def jl_clip(rng, asked):
    return {"probes": size(rng, 20, 10**4), "noise_multiplier": noise(rng, asked)}


PARAMETERS = {"gaussian": gaussian, "laplace": laplace, "m2": m2, "m1": m1, "wishart": wishart, "sketch": sketch,
              "sketch-public": sketch_public, "jl-clip": jl_clip}  # fmt: skip


def target(rng, asked):
    """A delta, or an epsilon."""
    single = "steps" not in asked.run and "sampling_rate" not in asked.run
    low = -100 if single and rng.random() < 0.15 else -12
    if rng.random() < 0.6:
        asked.delta = rng.choice([1e-5, 1e-6, 1e-12]) if rng.random() < 0.3 else 10.0 ** rng.uniform(low, -2)
    else:
        asked.query = "delta"
        asked.epsilon = rng.choice([0.0, 50.0]) if rng.random() < 0.15 else spread(rng, 1e-3, 8.0)


def inverse(rng, asked):
    """One question in five leaves a parameter out and gives both ends of the target."""
    if rng.random() > 0.2:
        return
    choices = ["steps"] * (asked.run.get("steps", 1) > 1)
    choices += ["rate"] * ("sampling_rate" in asked.run)
    choices += ["sigma"] * ("noise_multiplier" in asked.parameters)
    choices += ["rank"] * (
        "rank" in asked.parameters and "span_dim" not in asked.parameters and "change_rank" not in asked.parameters
    )
    choices += ["misalignment"] * (asked.mechanism == "wishart")
    if not choices:
        return
    asked.query = rng.choice(choices)
    asked.delta = asked.delta or 10.0 ** rng.uniform(-10, -3)
    asked.epsilon = asked.epsilon or spread(rng, 0.05, 10.0)
    asked.run.pop({"steps": "steps", "rate": "sampling_rate"}.get(asked.query, ""), None)
    asked.parameters.pop(
        {"sigma": "noise_multiplier", "rank": "rank", "misalignment": "misalignment"}.get(asked.query, ""), None
    )


def quick(asked):
    """True if a question costs a fraction of a second with all its laws: one release, or a run that needs no search."""
    single = "steps" not in asked.run and "sampling_rate" not in asked.run
    dear = {"mixture-rdp", "good-event", "good-event-q", "column", "early", "early-exact-tail", "secret-projection"}
    if asked.bound in dear or "norm_ratio" in asked.parameters or "layers" in asked.parameters:
        return False
    if asked.query not in ("epsilon", "delta"):
        return single and asked.query == "sigma" and asked.mechanism in ("gaussian", "laplace", "sketch-public")
    if single:
        return "span_dim" not in asked.parameters
    rate = asked.run.get("sampling_rate", 1.0)
    easy = asked.mechanism in ("gaussian", "laplace") or asked.bound == "exact-rank1"
    return easy and (rate > 1e-3 or rate < 1e-7 or asked.bound in RULES)


def quick_questions(count, first=0):
    """So many quick questions, one in fourteen a run on a lattice."""
    found, runs, seed = [], 0, first
    while len(found) < count:
        asked = question(seed)
        seed += 1
        lattice = asked.kind.endswith("run") and asked.bound not in RULES
        if quick(asked) and (not lattice or runs < 0.07 * (len(found) + 1)):
            runs += lattice
            found.append(asked)
    return found
