"""Declare the options of ``privproj train``, which a run saves in its folder.

This module does not import torch, so that the command line shows the options quickly.
"""

from dataclasses import dataclass
from typing import get_args

from privproj.errors import InvalidParameterError
from privproj.parameters import DEVIATION, NOISE, TEXT, check_parameters, number, one_of, parameter, whole_number
from privproj.run import EPOCHS
from privproj.sampling import SamplingName
from privproj.training.adaptive_clipping import CLIP
from privproj.training.algorithms import ALGORITHMS

COUNT = whole_number("a whole number from 1 to 1e9", 1, 10**9)  # records, steps, ranks, units

SEED = whole_number("a whole number from 0 to 1e9", 0, 10**9)

EPSILON = number("a number above 0 and at most 1e+09", 0.0, 1e9, open_low=True)  # target epsilon

WEIGHT = number("a number from 0 to below 1", 0.0, 1.0, open_high=True)  # weight of the past in a moving average

RATE = number("a positive learning rate", 0.0, 1e6, open_low=True)

# options that only one training algorithm has, each with the name of the algorithm
ONLY_FOR = {
    **dict.fromkeys(("update", "momentum", "beta2", "ridge"), "prism"),
    **dict.fromkeys(("subspace_steps", "public_data", "optimizer", "subspace_learning_rate"), "dp-sft"),
}

DELTA = number("a number above 0 and below 1", 0.0, 1.0, open_low=True, open_high=True)  # target delta


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training run; each field is an option of ``privproj train``.

    Raises :class:`InvalidParameterError` for values outside their ranges and for options that exclude each other.
    """

    data: str = parameter(TEXT, "digits, or an .npz file with arrays x and y.", "DATA")
    mechanism: str = parameter(one_of(*ALGORITHMS), "Training algorithm.")
    rank: int | None = parameter(COUNT, "Rank of the projection or the adapters, dimension of dp-sft's subspace.", "R")
    epsilon: float | None = parameter(EPSILON, "Target epsilon.", "E")
    delta: float = parameter(DELTA, "Target delta.  [default: 1e-5]", "D", default=1e-5)
    noise_multiplier: float | None = parameter(NOISE, "Noise multiplier, instead of a target epsilon.", "Z")
    clip: float = parameter(CLIP, "Clipping norm of a record's gradient.  [default: 1]", "C", default=1.0)
    adaptive_clipping_sigma: float | None = parameter(
        DEVIATION,
        "Adapt the clipping norm to the median gradient norm. S is the noise standard deviation of the count.",
        "S",
    )
    batch_size: int | None = parameter(COUNT, "Expected batch size.  [default: 256]", "B")
    sampling: str = parameter(
        one_of(*get_args(SamplingName)), "Sampling scheme.  [default: poisson]", "[poisson|balls-in-bins|fixed]",
        default="poisson",
    )  # fmt: skip
    batches: int | None = parameter(
        COUNT, "Number of batches in an epoch of balls-in-bins, instead of the batch size.", "T"
    )
    max_batch_size: int | None = parameter(COUNT, "Maximum size of a Poisson batch.", "B")
    epochs: float | None = parameter(EPOCHS, "Number of passes over the data.  [default: 50]", "E")
    steps: int | None = parameter(COUNT, "Number of steps, instead of epochs.", "T")
    learning_rate: float | None = parameter(RATE, "Learning rate.  [default: 2, or 0.2 for adaptive prism]", "LR")
    hidden: int | None = parameter(COUNT, "Number of units of a hidden layer.  [default: none, a linear head]", "H")
    frame: str | None = parameter(one_of("haar", "wishart"), "Distribution of the projection of m2.")
    clipping: str = parameter(
        one_of("joint", "per-layer"), "One clipping norm for all layers, or one for each layer.", default="joint"
    )
    every: int = parameter(
        COUNT, "Number of steps for which lora-resampled and flora keep a random factor.  [default: 1]", "T", default=1
    )
    update: str | None = parameter(
        one_of("adaptive", "plain"), "Optimizer of prism: with second moments or without.  [default: adaptive]"
    )
    momentum: float | None = parameter(WEIGHT, "Momentum of prism.  [default: 0.9]", "BETA")
    beta2: float | None = parameter(WEIGHT, "Decay rate of prism's second moments.  [default: 0.99]", "BETA")
    ridge: float | None = parameter(
        number("a number above 0 and at most 1e9", 0.0, 1e9, open_low=True),
        "Factor of the ridge on prism's second moments.  [default: 1]", "K",
    )  # fmt: skip
    subspace_steps: int | None = parameter(
        COUNT, "Steps of dp-sft's search, a multiple of the rank.  [default: half of the steps]", "T"
    )
    public_data: str | None = parameter(
        TEXT, "Public records from which dp-sft computes its subspace, at no privacy cost.", "DATA"
    )
    optimizer: str | None = parameter(one_of("sgd", "adam"), "Optimizer in dp-sft's subspace.  [default: sgd]")
    subspace_learning_rate: float | None = parameter(
        RATE, "Learning rate in dp-sft's subspace.  [default: --learning-rate, or 0.02 for adam]", "LR"
    )
    bound: str | None = parameter(TEXT, "Bound for the accounting of the run.", "NAME")
    device: str | None = parameter(TEXT, "cpu, cuda, ...  [default: cuda where there is one]", "DEVICE")
    checkpoint_every: int = parameter(COUNT, "Steps between checkpoints.  [default: 25]", "T", default=25)
    insecure_seed: int | None = parameter(
        SEED, "Make the run reproducible. This removes all privacy protection.", "SEED"
    )

    def __post_init__(self) -> None:
        for name in ("data", "mechanism"):
            if getattr(self, name) is None:
                raise InvalidParameterError(name, "nothing", "--data and --mechanism, or --resume")
        if self.epsilon is None and self.noise_multiplier is None:
            raise InvalidParameterError("epsilon", "nothing", "either --epsilon or --noise-multiplier")
        check_parameters(self)
        self._check_options_of_one_algorithm()
        two_stages = ("sampling", "poisson"), ("max_batch_size", None), ("adaptive_clipping_sigma", None)
        for name, only in two_stages if self.mechanism == "dp-sft" else ():
            if getattr(self, name) != only:
                expected = f"{only or 'omitted'} with {self.mechanism}"
                raise InvalidParameterError(name, getattr(self, name), expected)
        for name, sampling in (("max_batch_size", "poisson"), ("batches", "balls-in-bins")):
            if getattr(self, name) is not None and self.sampling != sampling:
                expected, remedy = f"omitted for {self.sampling} sampling", f"{name} needs sampling {sampling}"
                raise InvalidParameterError(name, getattr(self, name), expected, remedy)
        if self.batches is not None and self.batch_size is not None:
            raise InvalidParameterError("batches", self.batches, "omitted if batch_size is given")
        if self.adaptive_clipping_sigma is not None and self.clipping != "joint":
            raise InvalidParameterError("clipping", self.clipping, "joint with adaptive_clipping_sigma")

    def _check_options_of_one_algorithm(self) -> None:
        """Check options that belong to one algorithm, and set the default learning rate."""
        for name, mechanism in ONLY_FOR.items():
            if getattr(self, name) is not None and self.mechanism != mechanism:
                raise InvalidParameterError(name, getattr(self, name), f"omitted with {self.mechanism}")
        for name in ("beta2", "ridge") if self.update == "plain" else ():
            if getattr(self, name) is not None:
                raise InvalidParameterError(name, getattr(self, name), "omitted with update=plain")
        if self.subspace_steps is not None and self.rank and self.subspace_steps % self.rank:
            raise InvalidParameterError("subspace_steps", self.subspace_steps, f"a multiple of the rank {self.rank}")
        if self.public_data is not None and self.public_data == self.data:
            raise InvalidParameterError("public_data", self.public_data, "other data than --data, which is private")
        if self.learning_rate is None:
            adaptive = self.mechanism == "prism" and self.update != "plain"
            object.__setattr__(self, "learning_rate", 0.2 if adaptive else 2.0)
