"""What every mechanism has: its facts, how a group or the replace relation sees it, and its noise multiplier."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from privproj.assumptions import Requirement
from privproj.errors import InvalidParameter
from privproj.parameters import DEVIATION, NOISE, check_parameters, parameter, parameters_of


class Lift(NamedTuple):
    """What the update that is read off a release adds to the clipped sum ``S``, at the same privacy (C38).

    The update ``U``, the release brought back to the size of the gradient, has ``E U = S`` and ``E|U - S|^2 = (factor -
    1) |S|^2 + n d (noise z C)^2``: DP-SGD of multiplier ``noise z`` adds as much noise.

    Attributes:
        noise: The effective noise multiplier over the noise multiplier.
        factor: The projection factor, ``E|U|^2/|S|^2`` without noise; 1 where nothing is projected.
        released: How many numbers a release has; None where the size of the gradient is not known.
        of: How many the gradient has.
    """

    noise: float
    factor: float
    released: int | None = None
    of: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mechanism:
    """A mechanism: its name, what the program must have done, and how it looks under a neighbouring relation.

    The facts of a type of mechanism, one line each:

    * ``name``: what it is called on the command line and in files.
    * ``summary``: what it does, in a line.
    * ``example``: parameters for which it answers, ``name=value``.
    * ``assumes``: what the program must have done, in words.
    * ``default_relation``: the neighbouring relation where none is given.
    * ``poisson``: False where Poisson sampling has no amplification theorem.
    * ``remedy``: what makes epsilon smaller, in words for a message.
    * ``with_rank``: epsilon "grows" or "falls" with the rank, or first falls and then grows ("u-shaped").
    * ``finds_rank``: True where a rank can be sought that meets a target.
    * ``can_be_sampled``: True where some bound holds under subsampling.
    * ``deviation_over_scale``: standard deviation of the noise over what ``z`` counts in sensitivities.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str]
    assumes: ClassVar[tuple[str, ...]] = ()
    default_relation: ClassVar[str | None] = None
    poisson: ClassVar[bool] = True
    remedy: ClassVar[str] = "more noise"
    with_rank: ClassVar[Literal["grows", "falls", "u-shaped"]] = "grows"
    finds_rank: ClassVar[bool] = False
    can_be_sampled: ClassVar[bool] = True
    deviation_over_scale: ClassVar[float] = 1.0
    noise_multiplier = None

    def __new__(cls, **parameters: Any) -> Self:
        """Make a mechanism, or :class:`MechanismColumns` where a parameter but a flag is a list or an array."""
        if any(
            is_column(name, value) and not isinstance(getattr(cls, name, None), bool)
            for name, value in parameters.items()
        ):
            return MechanismColumns(cls, parameters)  # pyright: ignore[reportReturnType]
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def assumes_of_clips(self) -> tuple[str, ...]:
        """What the program must have done where several clips make up one norm, in words."""
        return ()

    @property
    def adapts_clip(self) -> bool:
        """True if a noisy count is released with the sum, by which the clip of the next release is chosen (C31)."""
        return False

    @property
    def projects_apart(self) -> bool:
        """Whether one release has several projections whose losses average, or add, only if they are independent."""
        return False

    def for_group(self, size: int) -> "Mechanism":
        """Return the same mechanism as a group of records sees it.

        Args:
            size: The number of records of one person, at least 1.

        Returns:
            The mechanism with the sensitivity and the promises of the whole group.
        """
        return self

    def for_replacement(self) -> "Mechanism":
        """Return the mechanism under the replace relation, where that changes more than the sensitivity."""
        return self

    @property
    def needed_rank(self) -> int:
        """The rank of the projection or of the sketch.

        Raises:
            InvalidParameter: The rank was left out.
        """
        rank = getattr(self, "rank", None)
        if rank is None:
            raise InvalidParameter("rank", "nothing", "a rank", "only the rank query leaves it out")
        return rank

    @property
    def rank_limit(self) -> int:
        """The largest rank that the rank query tries."""
        return 10**6

    def notes(self) -> list[str]:
        """Return what a reader of any number for this mechanism should know, in words."""
        return []

    def gain_words(self, *, of_noise: bool) -> str:
        """Return what plainer accounting of this mechanism shows, and what it does not.

        Args:
            of_noise: True where noise multipliers are compared at equal privacy, and not privacy at equal noise.

        Returns:
            The end of a sentence.
        """
        return "the same release by other accounting"

    def lift(self) -> Lift | None:
        """Return what the update that is read off a release adds to the sum; None where the mechanism has no update."""
        return None

    def parameters(self) -> dict[str, object]:
        """Return the parameters that were given, by name, as results and files write them."""
        # A number that is the default says nothing, nor do no layers.
        silent = {key: declared.default for key, declared in parameters_of(type(self)).items()}
        parameters: dict[str, object] = {
            key: value
            for key, value in vars(self).items()
            if value is not None and value is not False and (isinstance(value, str) or value != silent.get(key))
        }
        if "layers" in parameters:
            parameters["layers"] = [str(layer) for layer in vars(self)["layers"]]
        return parameters


@dataclass(frozen=True)
class MechanismColumns:
    """Many mechanisms of one kind, as one that is called with arrays: no mechanism, so that no door of one takes it.

    ``epsilons``, ``deltas`` and ``sigmas`` do.
    """

    kind: type[Mechanism]
    parameters: dict[str, Any]


def is_column(name: str, value: object) -> bool:
    """True for a list, a tuple, a range or an array, but for layers, of which every row has all."""
    return name != "layers" and (isinstance(value, list | tuple | range) or len(getattr(value, "shape", ())) > 0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NoisyMechanism(Mechanism):
    """A mechanism with a noise multiplier, which is left out only where it is what a query finds."""

    noise_multiplier: float | None = parameter(
        NOISE, "z = noise standard deviation / sensitivity.", "Z", is_needed=True, is_found=True
    )

    @property
    def mu(self) -> float:
        """The ratio ``mu = 1/z`` of sensitivity to noise.

        Raises:
            InvalidParameter: The noise multiplier was left out.
        """
        return 1.0 / self.z

    @property
    def z(self) -> float:
        """The noise multiplier ``z``, the ratio of noise to sensitivity.

        Raises:
            InvalidParameter: The noise multiplier was left out.
        """
        if self.noise_multiplier is None:
            raise InvalidParameter("noise_multiplier", None, "a noise multiplier", "only the sigma query leaves it out")
        return self.noise_multiplier

    def for_group(self, size: int) -> "Mechanism":
        """Return the mechanism as a group sees it: its sensitivity grows as many times as it has records.

        Args:
            size: The number of records of one person, at least 1.

        Returns:
            The mechanism with its noise multiplier divided by ``size``.
        """
        return self if self.noise_multiplier is None else replace(self, noise_multiplier=self.noise_multiplier / size)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClippedSum(NoisyMechanism):
    """A noisy sum of clipped records, which may be released together with the noisy count that adapts its clip (C31).

    The count is the sum of ``b_i - 1/2`` over the records of the batch, where ``b_i`` is 1 for a record that was not
    clipped, and 0 for one that was. One record moves it by at most 1/2, or by 1 where it is replaced.
    """

    adaptive_clipping_sigma: float | None = parameter(
        DEVIATION, "Noise on the sum of +-1/2 (clipped or not) that adapts the clip.", "S", is_rare=True
    )

    @property
    def assumes_of_clips(self) -> tuple[str, ...]:
        """With a count that adapts the clip, what may follow earlier releases, and what is counted."""
        return (Requirement.ADAPTIVE_CLIPPING, Requirement.CENTERED_COUNT) if self.adapts_clip else ()

    @property
    def adapts_clip(self) -> bool:
        """True if a noisy count is released with the sum, by which the clip of the next release is chosen (C31)."""
        return self.adaptive_clipping_sigma is not None

    @property
    def adaptive_count_shift(self) -> float:
        """The squared shift ``c^2`` of the noisy count in units of its noise; 0 where no count is released."""
        # c = (1/2)/S (C31)
        return 0.0 if self.adaptive_clipping_sigma is None else (0.5 / self.adaptive_clipping_sigma) ** 2

    @property
    def mu_with_count(self) -> float:
        """The shift of the sum and the count together, where nothing is projected; ``mu`` without a count.

        Raises:
            InvalidParameter: The noise multiplier was left out.
        """
        if self.adaptive_clipping_sigma is None:
            return self.mu
        # sqrt(mu^2 + c^2), c = (1/2)/S, rounded up (C31)
        return math.nextafter(math.hypot(self.mu, 0.5 / self.adaptive_clipping_sigma), math.inf)

    def mus_with_count(self, mu: Any) -> Any:
        """Return :attr:`mu_with_count` at other ratios ``mu``.

        Args:
            mu: A number, or an array of them.

        Returns:
            As many joint shifts, rounded up.
        """
        # sqrt(mu^2 + c^2), with room for four roundings (C31)
        joint = (mu * mu + self.adaptive_count_shift) ** 0.5 * (1.0 + 1e-15)
        return mu if self.adaptive_clipping_sigma is None else joint

    def for_group(self, size: int) -> "Mechanism":
        """Return the mechanism as a group sees it: its sum and its count change as many times as it has records.

        Args:
            size: The number of records of one person, at least 1.

        Returns:
            The mechanism with its noise multiplier, and the deviation of the noise on the count, divided by ``size``.
        """
        return _with_count(super().for_group(size), self.adaptive_clipping_sigma, size)

    def for_replacement(self) -> "Mechanism":
        """Return the mechanism under replace, where a record that is clipped may replace one that is not.

        Returns:
            The mechanism with the deviation of the noise on the count divided by two.
        """
        return _with_count(self, self.adaptive_clipping_sigma, 2)


def _with_count(mechanism: Mechanism, sigma: float | None, size: int) -> Mechanism:
    """The mechanism whose count changes ``size`` times as much, which is written as less noise on it."""
    if sigma is None:
        return mechanism
    return replace(mechanism, adaptive_clipping_sigma=sigma / size)  # pyright: ignore[reportCallIssue]
