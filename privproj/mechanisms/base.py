"""Define the base classes of mechanisms."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, unknown_name
from privproj.parameters import DEVIATION, NOISE, check_parameters, parameter, parameters_of, quoted


class Lift(NamedTuple):
    """The noise and projection error in the model update of one training step (C38).

    The update ``U`` is the released matrix, mapped back to the shape of the gradient. Let ``S`` be the sum of the
    clipped gradients, a matrix with ``n d`` entries. Let ``C`` be the clipping norm and ``z`` the noise multiplier.
    Then ``E U = S`` and

        E|U - S|^2 = (factor - 1) |S|^2 + n d (noise z C)^2.

    The noise in ``U`` is as large as that of DP-SGD with the noise multiplier ``noise z``.

    Attributes:
        noise: The ratio of the effective noise multiplier to the noise multiplier ``z``.
        factor: The projection factor, ``E|U|^2/|S|^2`` without noise; 1 if nothing is projected.
        released: The number of entries of the released matrix; None if the size of the gradient is not known.
        of: The number of entries of the gradient; None if it is not known.
    """

    noise: float
    factor: float
    released: int | None = None
    of: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mechanism:
    """Base class of mechanisms.

    Class attributes:

    * ``name``: the name on the command line and in files.
    * ``summary``: a description in one line.
    * ``example``: parameters of an example, as ``name=value`` pairs.
    * ``requirements``: the requirements of every bound on the training program.
    * ``default_relation``: the neighboring relation if none is given; None for add-remove.
    * ``poisson``: whether there is an amplification theorem for Poisson sampling.
    * ``remedy``: a change of parameters that reduces epsilon, for error messages.
    * ``with_rank``: whether epsilon "grows" or "falls" with the rank, or first falls and then grows ("u-shaped").
    * ``finds_rank``: whether privproj can calibrate the rank to a target.
    * ``can_be_sampled``: whether some bound holds under subsampling.
    * ``used_by``: for each parameter that only some bounds use, its name and the names of these bounds, the best one
      first.
    * ``deviation_over_scale``: the standard deviation of the noise, divided by the noise multiplier times the
      sensitivity: ``sqrt(2)`` for Laplace noise, otherwise 1.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str]
    requirements: ClassVar[tuple[str, ...]] = ()
    default_relation: ClassVar[str | None] = None
    poisson: ClassVar[bool] = True
    remedy: ClassVar[str] = "more noise"
    with_rank: ClassVar[Literal["grows", "falls", "u-shaped"]] = "grows"
    finds_rank: ClassVar[bool] = False
    can_be_sampled: ClassVar[bool] = True
    used_by: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()
    deviation_over_scale: ClassVar[float] = 1.0
    noise_multiplier = None

    def __new__(cls, *unnamed: object, **parameters: Any) -> Self:
        """Return a mechanism, or several mechanisms if a parameter is an array.

        A list, tuple, range or array gives a :class:`MechanismColumns`, except for a flag or ``layers``.

        Raises:
            InvalidParameterError: A parameter is unknown, or given without its name.
        """
        if unnamed:
            is_one = len(unnamed) == 1 and cls.example.count("=") == 1
            call = f"{cls.__name__}({cls.example.split('=')[0]}={unnamed[0]!r})" if is_one else cls.call_text()
            raise InvalidParameterError(
                f"arguments of {cls.__name__}", quoted(unnamed), "given by name", f"write {call}"
            )
        names = [field.name for field in fields(cls)]
        for name in parameters.keys() - names:
            raise unknown_name(name, parameters[name], f"parameter of {cls.__name__}", names, word=name)
        if any(
            is_column(name, value) and not isinstance(getattr(cls, name, None), bool)
            for name, value in parameters.items()
        ):
            return MechanismColumns(cls, parameters)  # pyright: ignore[reportReturnType]
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_parameters(self)

    @classmethod
    def call_text(cls, without: str = "") -> str:
        """Return an example of a call of the constructor, for error messages.

        Args:
            without: The name of a parameter to leave out, because it is calibrated.

        Returns:
            The call as text, with ``...`` for the values.
        """
        names = (pair.split("=")[0] for pair in cls.example.split())
        return f"{cls.__name__}({', '.join(f'{name}=...' for name in names if name != without)})"

    @property
    def clipping_requirements(self) -> tuple[str, ...]:
        """The requirements on clipping that depend on the parameters."""
        return ()

    @property
    def adapts_clip(self) -> bool:
        """Whether each release includes a noisy count for adaptive clipping (C31)."""
        return False

    @property
    def projects_apart(self) -> bool:
        """Whether one release uses several projections that must be independent (C6)."""
        return False

    def for_group(self, size: int) -> "Mechanism":
        """Return the mechanism with the sensitivity of a user with ``size`` records.

        Args:
            size: The number of records of the user, at least 1.

        Returns:
            The mechanism, in which the sensitivity and the assumptions hold for all these records together.
        """
        return self

    def for_replacement(self) -> "Mechanism":
        """Return the mechanism under the replace relation.

        The noise multiplier does not change, because it is relative to the sensitivity under the same relation.
        Subclasses change other parameters that depend on the relation.

        Returns:
            The mechanism; by default this mechanism itself.
        """
        return self

    @property
    def needed_rank(self) -> int:
        """The rank of the projection or of the sketch.

        Raises:
            InvalidParameterError: The rank was omitted.
        """
        rank = getattr(self, "rank", None)
        if rank is None:
            raise InvalidParameterError("rank", "nothing", "an integer")
        return rank

    @property
    def rank_limit(self) -> int:
        """The largest rank that a calibration tries."""
        return 10**6

    def notes(self) -> list[str]:
        """Return warnings that every result of this mechanism must contain."""
        return []

    def lift(self) -> Lift | None:
        """Return the noise and projection error of the model update; None if not defined."""
        return None

    def parameters(self) -> dict[str, object]:
        """Return the parameters that differ from their defaults, by name."""
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
    """Several mechanisms of one class, with an array of values for some parameters.

    Only ``epsilons``, ``deltas`` and ``sigmas`` accept such an object.
    """

    kind: type[Mechanism]
    parameters: dict[str, Any]


def is_column(name: str, value: object) -> bool:
    """Return whether the value of a parameter is a list, tuple, range or array.

    The result is False for ``layers``, which belong to one mechanism.
    """
    return name != "layers" and (isinstance(value, list | tuple | range) or len(getattr(value, "shape", ())) > 0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NoisyMechanism(Mechanism):
    """A mechanism with a noise multiplier, which is None if it is to be calibrated."""

    noise_multiplier: float | None = parameter(
        NOISE, "z = noise standard deviation / sensitivity.", "Z", is_needed=True, is_found=True
    )

    @property
    def mu(self) -> float:
        """The ratio of the sensitivity to the scale of the noise, 1 / noise multiplier.

        Raises:
            InvalidParameterError: The noise multiplier was omitted.
        """
        return 1.0 / self.z

    @property
    def z(self) -> float:
        """The noise multiplier, the ratio of noise scale to sensitivity.

        Raises:
            InvalidParameterError: The noise multiplier was omitted.
        """
        if self.noise_multiplier is None:
            raise InvalidParameterError("noise_multiplier", None, "a number")
        return self.noise_multiplier

    def for_group(self, size: int) -> "Mechanism":
        """Return the mechanism with the sensitivity of a user with ``size`` records.

        Args:
            size: The number of records of the user, at least 1.

        Returns:
            The mechanism with its noise multiplier divided by ``size``.
        """
        return self if self.noise_multiplier is None else replace(self, noise_multiplier=self.noise_multiplier / size)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClippedSum(NoisyMechanism):
    """A noisy sum of clipped gradients, optionally released with a noisy count (C31).

    The count determines the clipping norm of later releases (adaptive clipping). It is the sum of ``b_i - 1/2`` over
    the records of the batch, where ``b_i`` is 1 for a record that was not clipped and 0 otherwise. The sensitivity of
    the count is 1/2, or 1 under replace.
    """

    adaptive_clipping_sigma: float | None = parameter(
        DEVIATION, "Noise standard deviation of the count for adaptive clipping.", "S", is_rare=True
    )

    @property
    def clipping_requirements(self) -> tuple[str, ...]:
        """The requirements of adaptive clipping; empty for a fixed clipping norm."""
        return (Requirement.NOISE_AT_ADAPTED_CLIP, Requirement.CENTERED_COUNT) if self.adapts_clip else ()

    @property
    def adapts_clip(self) -> bool:
        """Whether each release includes a noisy count for adaptive clipping (C31)."""
        return self.adaptive_clipping_sigma is not None

    @property
    def adaptive_count_shift(self) -> float:
        """The squared sensitivity of the clipping count divided by its noise variance; 0 without a count."""
        # c = (1/2)/S (C31)
        return 0.0 if self.adaptive_clipping_sigma is None else (0.5 / self.adaptive_clipping_sigma) ** 2

    @property
    def mu_with_count(self) -> float:
        """The ratio of sensitivity to noise of gradient sum and clipping count as one vector, rounded up.

        Raises:
            InvalidParameterError: The noise multiplier was omitted.
        """
        if self.adaptive_clipping_sigma is None:
            return self.mu
        # sqrt(mu^2 + c^2), c = (1/2)/S, rounded up (C31)
        return math.nextafter(math.hypot(self.mu, 0.5 / self.adaptive_clipping_sigma), math.inf)

    def mus_with_count(self, mu: Any) -> Any:
        """Return :attr:`mu_with_count` for each given ratio of the gradient sum.

        Args:
            mu: The ratio of sensitivity to noise of the gradient sum, a number or an array.

        Returns:
            The ratios of gradient sum and clipping count as one vector, rounded up.
        """
        # sqrt(mu^2 + c^2) (C31); soundness: 1e-15 covers four roundings
        joint = (mu * mu + self.adaptive_count_shift) ** 0.5 * (1.0 + 1e-15)
        return mu if self.adaptive_clipping_sigma is None else joint

    def for_group(self, size: int) -> "Mechanism":
        """Return the mechanism with the sensitivity of a user with ``size`` records.

        Args:
            size: The number of records of the user, at least 1.

        Returns:
            The mechanism with its noise multiplier and its ``adaptive_clipping_sigma`` divided by ``size``.
        """
        return _with_count(super().for_group(size), self.adaptive_clipping_sigma, size)

    def for_replacement(self) -> "Mechanism":
        """Return the mechanism under the replace relation.

        A clipped record may replace one that is not clipped, so the sensitivity of the clipping count doubles.

        Returns:
            The mechanism with its ``adaptive_clipping_sigma`` divided by two.
        """
        return _with_count(self, self.adaptive_clipping_sigma, 2)


def _with_count(mechanism: Mechanism, sigma: float | None, size: int) -> Mechanism:
    """Return the mechanism with ``adaptive_clipping_sigma`` set to ``sigma / size``; unchanged for None."""
    if sigma is None:
        return mechanism
    return replace(mechanism, adaptive_clipping_sigma=sigma / size)  # pyright: ignore[reportCallIssue]
