"""Define PRISM: private steps on the manifold of rank-r matrices.

The method is from arXiv 2606.00944. PRISM projects each record's gradient to the tangent space of the manifold at the
current matrix ``Z``. It clips this tangent vector and adds noise to the sum. The tangent space depends on past releases
only, so a step is the subsampled Gaussian mechanism at any rank (C3: Gaussian profile; C17: subsampling). The move
along the released tangent vector is post-processing.

The singular value decomposition of ``Z`` is ``U diag(s) V^T`` (m x n, rank r). A tangent vector at ``Z`` is ``xi = U K
V^T + Up V^T + U Vp^T`` for matrices ``K`` (r x r), ``Up`` and ``Vp`` with ``U^T Up = 0`` and ``V^T Vp = 0``. The
balanced factors of ``Z`` are ``A = U s^1/2`` and ``B = V s^1/2``. The lift of ``xi`` is the pair ``(dA, dB)`` with ``dA
B^T + A dB^T = xi`` and ``A^T dA = dB^T B``.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from privproj.errors import InvalidParameterError
from privproj.parameters import integer
from privproj.training import per_example
from privproj.training.algorithms.lora import wrap_layers
from privproj.training.capture import RULES, AllRecords
from privproj.training.generators import Streams, orthonormal, streams
from privproj.training.plan import Plan
from privproj.training.trained import Trained
from privproj.training.view import Algorithm, View


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Options of the step that PRISM makes from a released tangent vector ``xi``.

    PRISM trains a low-rank matrix ``Z``. The first release initializes the momentum and the second moments.

    Args:
        kind: "plain" or "adaptive". A plain step goes from ``Z`` to the best approximation of ``Z - lr m`` with the
            rank of ``Z``, where ``m`` is the momentum and ``lr`` the learning rate. An adaptive step, as in the paper,
            first divides the momentum of the two factors of ``Z`` by the root of second moments.
        momentum: Weight of the past in the momentum ``m <- momentum m + (1 - momentum) xi``, from 0 to below 1.
        beta2: Weight of the past in the second moments, from 0 to below 1. For "adaptive" only.
        ridge: Positive factor. The ridge added to the second moments is ``ridge`` times the mean second moment of the
            noise in the release. The paper adds ``z C^2/(q N)``, with noise multiplier ``z``, clipping norm ``C`` and
            expected batch size ``q N``, which has another unit than the second moments. For "adaptive" only.
        floor: Steps are plain while the smallest singular value of ``Z`` is at most this positive number.

    >>> from privproj.training import Steps
    >>> Steps(momentum=0.5).kind
    'adaptive'
    """

    kind: Literal["plain", "adaptive"] = "adaptive"
    momentum: float = 0.9
    beta2: float = 0.99
    ridge: float = 1.0
    floor: float = 1e-3


class PrismLinear(nn.Module):
    """A linear layer with a trained low-rank part: ``y = W x + b + U (s * (V^T x))``.

    ``W`` and ``b`` are frozen. The matrix ``U diag(s) V^T`` is trained and starts at zero. ``U`` (outputs x rank) and
    ``V`` (inputs x rank) start as uniformly random orthonormal bases from public randomness, and ``s`` at zero.

    Args:
        base: The linear layer to adapt. Its tensors are frozen.
        rank: Rank of the trained part, at least 1 and at most the numbers of inputs and of outputs.
        steps: Options of the training steps.
        stream: The random generator for the bases, on the device of the layer.

    Raises:
        InvalidParameterError: ``rank`` is outside its range.

    >>> import torch
    >>> from privproj.training import PrismLinear, Steps
    >>> base = torch.nn.Linear(6, 3)
    >>> layer = PrismLinear(base, 2, Steps(), torch.Generator().manual_seed(0))
    >>> [tuple(tensor.shape) for tensor in (layer.u, layer.s, layer.v)]
    [(3, 2), (2,), (6, 2)]
    >>> torch.equal(layer(torch.ones(5, 6)), base(torch.ones(5, 6)))
    True
    """

    def __init__(self, base: nn.Linear, rank: int, steps: Steps, stream: torch.Generator) -> None:
        super().__init__()
        self.base, self.steps = base.requires_grad_(False), steps
        smaller = min(base.in_features, base.out_features)
        rank = integer("rank", rank, f"an integer from 1 to {smaller}, the smaller side of a layer", 1, smaller)
        weight = base.weight
        self.u = nn.Parameter(orthonormal(base.out_features, rank, weight, stream)[0])
        self.s = nn.Parameter(torch.zeros(rank, dtype=weight.dtype, device=weight.device))
        self.v = nn.Parameter(orthonormal(base.in_features, rank, weight, stream)[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer with its low-rank part.

        Args:
            x: A tensor whose last dimension has the inputs of the layer.

        Returns:
            ``W x + b + U (s * (V^T x))``, whose last dimension has the outputs of the layer.
        """
        # y = W x + b + U (s * (V^T x)).
        return self.base(x) + low_rank(x, self.u, self.s, self.v)

    def trained_as(self, name: str) -> "_TrainedLowRank":
        """Return the low-rank part of the layer as one trained matrix.

        Args:
            name: The name of the layer in its module, for error messages.

        Returns:
            The matrix ``U diag(s) V^T``, whose parameters are ``U``, ``s`` and ``V``.
        """
        return _TrainedLowRank(name, self)


def low_rank(x: Tensor, u: Tensor, s: Tensor, v: Tensor) -> Tensor:
    """Return ``U (s * (V^T x))``, the output of the low-rank part of a layer."""
    # During training privproj.training.capture intercepts this function to compute per-example gradients.
    if has_torch_function((x, u, s, v)):
        return handle_torch_function(low_rank, (x, u, s, v), x, u, s, v)
    return ((x @ v) * s) @ u.T


def _capture_low_rank(during: AllRecords, x: Tensor, u: Tensor, s: Tensor, v: Tensor) -> Any:
    """Return :func:`low_rank` for all records, and capture the factors of its gradients.

    Raises :class:`InvalidParameterError` if ``u`` is not in a PRISM layer, or within a transform of ``torch.func``.
    """
    trained, _ = during.copies.get(id(u), (None, None))
    if not isinstance(trained, _TrainedLowRank) or during.takes_gradients:
        expected = "a module whose PRISM layers are used as layers"
        raise InvalidParameterError("module", "other factors", expected, "call the layer outside of torch.func")
    factors = [p.detach() for p in trained.parameters]

    def keep(x: Tensor, g: Tensor) -> None:
        trained.keep(g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1]))

    return during.use(x, lambda x: low_rank(x, *factors), keep)


RULES[low_rank] = _capture_low_rank


def add_prism(
    module: nn.Module, rank: int, *, steps: Steps | None = None, where: Any = None, insecure_seed: int | None = None
) -> nn.Module:
    """Wrap linear layers of a module in :class:`PrismLinear`; freeze other tensors.

    Call this before you build the optimizer. The module is changed in place. If ``module`` is a linear layer, a wrapped
    layer is returned.

    Args:
        module: The module to adapt.
        rank: Rank of every trained part, at least 1 and at most the inputs and the outputs of every adapted layer.
        steps: Options of the training steps. None: ``Steps()``, the adaptive steps of the paper.
        where: Called with the name of a linear layer and the layer; returns True to adapt the layer. None: all linear
            layers are adapted. ``where`` is not called if the module itself is a linear layer.
        insecure_seed: A whole number of at least 0 that makes the bases repeatable. None: they come from a generator
            seeded by the operating system.

    Returns:
        The module with its low-rank parts.

    Raises:
        InvalidParameterError: ``rank`` is outside its range for a layer, or no layer is adapted.

    >>> import torch
    >>> from privproj.training import add_prism
    >>> module = add_prism(torch.nn.Linear(6, 3), 2)
    >>> [name for name, tensor in module.named_parameters() if tensor.requires_grad]
    ['u', 's', 'v']
    """
    drawn, steps = streams(insecure_seed).projection, steps or Steps()
    return wrap_layers(module, lambda layer: PrismLinear(layer, rank, steps, drawn.on(layer.weight.device)), where)


# --- the tangent space of rank-r matrices ----------------------------------------------------------
#
# For a tangent vector, ``|xi|^2 = |K|^2 + |Up|^2 + |Vp|^2``. These coordinates are unique, so
# isotropic noise on them is isotropic noise on the tangent space, whose dimension is ``r (m + n - r)``. No Gram matrix
# is inverted, so small singular values are not a problem here. Source: arXiv 2606.00944, in (U, s, V) coordinates.


class Point(NamedTuple):
    """The singular value decomposition ``U diag(s) V^T`` of a matrix of rank ``r``.

    ``U`` (m x r) and ``V`` (n x r) have orthonormal columns. The entries of ``s`` are nonnegative in descending order.
    """

    u: Tensor
    s: Tensor
    v: Tensor


class _Tangent(NamedTuple):
    """A tangent vector ``U K V^T + Up V^T + U Vp^T`` of the manifold of rank-r matrices.

    It is tangent at the matrix ``U diag(s) V^T`` (m x n). ``K`` is r x r, ``Up`` is m x r, and ``Vp`` is n x r.
    """

    k: Tensor
    up: Tensor
    vp: Tensor

    def flat(self) -> Tensor:
        """Return the entries of the three matrices of this tangent vector as one vector."""
        return torch.cat([part.flatten() for part in self])

    def moved_to(self, other: "_Tangent", beta: float) -> "_Tangent":
        """Return the weighted mean ``beta self + (1 - beta) other`` of two tangent vectors."""
        return _Tangent(*(beta * one + (1.0 - beta) * another for one, another in zip(self, other, strict=True)))


def from_flat(row: Tensor, at: Point) -> _Tangent:
    """Return the tangent vector at ``at`` that :meth:`_Tangent.flat` stored as ``row``.

    The entries are projected to the tangent space.
    """
    (m, r), n = at.u.shape, at.v.shape[0]
    k, up, vp = row.split([r * r, m * r, n * r])
    return _orthogonal(_Tangent(k.view(r, r), up.view(m, r), vp.view(n, r)), at)


def _orthogonal(xi: _Tangent, at: Point) -> _Tangent:
    """Return ``xi`` projected to the tangent space at the matrix ``at``."""
    # (I - U U^T) Up and (I - V V^T) Vp, with the bases U and V of the point.
    return _Tangent(xi.k, xi.up - at.u @ (at.u.T @ xi.up), xi.vp - at.v @ (at.v.T @ xi.vp))


def from_products(gv: Tensor, gtu: Tensor, at: Point) -> _Tangent:
    """Return the projection of a matrix ``G`` to the tangent space at the matrix ``at``.

    ``gv`` is ``G V`` and ``gtu`` is ``G^T U``, with the singular vectors ``U`` and ``V`` of ``at``.
    """
    # K = U^T G V, Up = (I - U U^T) G V, Vp = (I - V V^T) G^T U.
    return _orthogonal(_Tangent(at.u.T @ gv, gv, gtu), at)


def truncated(left: Tensor, core: Tensor, right: Tensor, rank: int) -> Point:
    """Return the best rank-``rank`` approximation of ``left core right^T``."""
    # left core right^T = Ql (Rl core Rr^T) Qr^T, and the inner matrix is small.
    ql, rl = torch.linalg.qr(left)
    qr, rr = torch.linalg.qr(right)
    a, s, bt = torch.linalg.svd(rl @ core @ rr.T)
    return Point(ql @ a[:, :rank], s[:rank], qr @ bt[:rank].T)


def retracted(at: Point, xi: _Tangent, rate: float) -> Point:
    """Return the best approximation of ``at - rate xi`` that has the rank of ``at``.

    ``xi`` is a tangent vector at the matrix ``at``.
    """
    # Z - rate xi = [U, Up] [[diag(s) - rate K, -rate I], [-rate I, 0]] [V, Vp]^T.
    return _moved(at.u, xi.up, torch.diag(at.s) - rate * xi.k, at.v, xi.vp, rate)


def _moved(a: Tensor, ascent_a: Tensor, core: Tensor, b: Tensor, ascent_b: Tensor, rate: float) -> Point:
    """Return the best rank-r approximation of ``A core B^T - rate (dA B^T + A dB^T)``.

    The matrices are ``A = a``, ``dA = ascent_a``, ``B = b`` and ``dB = ascent_b``. ``A`` has ``r`` columns.
    """
    # [A, dA] [[core, -rate I], [-rate I, 0]] [B, dB]^T.
    one = torch.eye(len(core), dtype=core.dtype, device=core.device)
    wide = torch.cat([torch.cat([core, -rate * one], 1), torch.cat([-rate * one, torch.zeros_like(one)], 1)])
    return truncated(torch.cat([a, ascent_a], 1), wide, torch.cat([b, ascent_b], 1), len(core))


def transported(xi: _Tangent, old: Point, new: Point) -> _Tangent:
    """Return a tangent vector at ``old`` projected to the tangent space at ``new``."""
    # With the bases U', V' of new: xi V' = U (K V^T V' + Vp^T V') + Up V^T V', and likewise for xi^T U'.
    gv = old.u @ (xi.k @ (old.v.T @ new.v) + xi.vp.T @ new.v) + xi.up @ (old.v.T @ new.v)
    gtu = old.v @ (xi.k.T @ (old.u.T @ new.u) + xi.up.T @ new.u) + xi.vp @ (old.u.T @ new.u)
    return from_products(gv, gtu, new)


def lifted(xi: _Tangent, at: Point) -> tuple[Tensor, Tensor]:
    """Return the lift ``(dA, dB)`` of a tangent vector to the factors of a matrix.

    The matrix ``at`` is ``A B^T``. The factors ``A`` and ``B`` are its singular vectors times the roots of its singular
    values, which must be positive. The lift solves ``dA B^T + A dB^T = xi`` and ``A^T dA = dB^T B``.
    """
    # X_ij = K_ij sqrt(s_j) / (s_i + s_j), (Y^T)_ij = sqrt(s_i) K_ij / (s_i + s_j).
    root, total = at.s.sqrt(), at.s[:, None] + at.s[None, :]
    x, yt = xi.k * root[None, :] / total, root[:, None] * xi.k / total
    # dA = U X + Up s^-1/2, dB = V Y + Vp s^-1/2.
    return at.u @ x + xi.up / root, at.v @ yt.T + xi.vp / root


def noise_moment(s: Tensor, side: int, deviation: float) -> Tensor:
    """Return the diagonal of ``E dA^T dA / side``, the second moment of lifted noise.

    ``dA`` (side x r) is the lift (:func:`lifted`) of Gaussian noise at a matrix with the singular values ``s``.
    ``deviation`` is the standard deviation of the noise on every coordinate.
    """
    # (tau^2/m) ((m - r)/s_j + sum_i s_j/(s_i + s_j)^2), with tau the deviation.
    crossed = (s[None, :] / (s[:, None] + s[None, :]).square()).sum(0)
    return deviation**2 / side * ((side - len(s)) / s + crossed)


def _inverse_root(moment: Tensor, ridge: Tensor | float) -> Tensor:
    """Return ``(moment + ridge I)^-1/2`` for a positive semidefinite matrix ``moment``."""
    # Negative eigenvalues come from rounding and count as zero.
    values, vectors = torch.linalg.eigh(moment)
    return (vectors / (values.clamp_min(0.0) + ridge).sqrt()) @ vectors.T


def _polar(matrix: Tensor) -> Tensor:
    """Return the orthogonal factor of the polar decomposition of a square matrix."""
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


# --- what is released, and the step ----------------------------------------------------------------

# Largest Frobenius norm d of U^T U - I or V^T V - I when the losses of a batch are computed. If d is larger, the bases
# were changed after the batch was drawn, which raises an error.
LARGEST_DEVIATION = 1e-3

# soundness: squared norms are increased by the factor 1 + OVERSTATEMENT d. The summand has at most 1 + d (1 + d) times
# the computed squared norm, because |U^T M|^2 + |(I - U U^T) M|^2 exceeds |M|^2 by <M, U (U^T U - I) U^T M>.
OVERSTATEMENT = 8.0


def _orthonormality_error(at: Point) -> Tensor:
    """Return the larger Frobenius norm of ``U^T U - I`` and ``V^T V - I``.

    ``U`` and ``V`` are the bases of the point ``at``.
    """
    wide = [per_example.to_double(basis) for basis in (at.u, at.v)]
    eye = torch.eye(len(at.s), dtype=wide[0].dtype, device=at.s.device)
    return torch.stack([(basis.T @ basis - eye).norm() for basis in wide]).max()


class _TrainedLowRank(Trained):
    """The trained matrix ``U diag(s) V^T`` of a :class:`PrismLinear`."""

    only_for, keeps_factors = "prism", True

    def __init__(self, name: str, module: PrismLinear) -> None:
        super().__init__(name, module, module.u)
        self.parameters = [module.u, module.s, module.v]
        self.layer = module

    @property
    def shape(self) -> tuple[int, int]:
        return self.layer.u.shape[0], self.layer.v.shape[0]

    def add_whole(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        # The gradients of the factors do not determine the gradient of the matrix.
        remedy = "do not pass one_by_one, and use the factors in their layer only"
        actual, expected = f"a use of the factors of {self.name}", "a module whose PRISM layers are used as layers"
        raise InvalidParameterError("module", actual, expected, remedy)


class _TangentView(View):
    """The linear map of PRISM, which projects gradients to a tangent space.

    This is the tangent space of the manifold of rank-r matrices at the current matrix. The projected gradients are
    clipped.
    """

    def __init__(self, trained: _TrainedLowRank, plan: Plan, rank: int) -> None:
        super().__init__(trained, plan, rank)
        # All coordinates are released as one vector: K has r r entries, Up m r, Vp n r. The tangent space has
        # r (m + n - r) dimensions.
        r = len(trained.layer.s)
        self.shape = (r * (r + sum(trained.shape)),)
        # tau = sigma / (q N): the standard deviation of the noise on a released coordinate.
        self.deviation = plan.noise_std / plan.expected_batch
        self.steps = trained.layer.steps
        self.moment: _Tangent | None = None
        self.factors: tuple[Tensor, Tensor] | None = None
        self.second: tuple[Tensor, Tensor] | None = None
        self.written: list[int] = []

    @property
    def is_as_written(self) -> bool:
        """True if torch's version counters show that no factor changed since the last step."""
        # On a CPU the factors themselves are compared.
        if self.trained.weight.device.type == "cpu":
            return False
        return self.written == [parameter._version for parameter in self.trained.parameters]

    @property
    def point(self) -> Point:
        return Point(*(factor.detach() for factor in self.trained.parameters))

    def refresh(self, streams: Streams) -> None:
        """Make the bases of the low-rank matrix orthonormal if other code changed them."""
        at = self.point
        # A smaller error is left as it is to save time: squared_norms includes it.
        if not self.is_as_written and _orthonormality_error(at) > 1e-5:
            new = truncated(at.u, torch.diag(at.s), at.v, len(at.s))
            self.moment = None if self.moment is None else transported(self.moment, at, new)
            self.move(new)
        self.written = [parameter._version for parameter in self.trained.parameters]

    def squared_norms(self) -> Tensor | None:
        """Return an upper bound on the squared norm of each record's projected gradient.

        The bound also holds for bases that are not exactly orthonormal. The result is None if no gradients were
        captured.
        """
        captured = self.trained.take()
        if captured is None:
            return None
        (g, x), at = captured, self.point
        loose = _orthonormality_error(at)
        if not self.is_as_written and loose > LARGEST_DEVIATION:
            remedy = "load weights before make_private or between steps"
            raise InvalidParameterError(
                self.trained.name, "factors that are not orthonormal", "unchanged since the last step", remedy
            )
        # G_j V and (I - V V^T) G_j^T U, formed or as pairs of factors.
        low = x @ at.v
        self.seen = [(g, low), (x - low @ at.v.T, g @ at.u)]
        if 1 < g.shape[1] >= low.shape[2]:
            self.seen = [(per_example.formed(*pair),) for pair in self.seen]
        norms = [per_example.squared_norms(*part) for part in self.seen]
        # |P_T(G_j)|^2 = |G_j V|^2 + |(I - V V^T) G_j^T U|^2, times 1 + OVERSTATEMENT d; infinite if d is too large.
        squared = (norms[0] + norms[1]) * (1.0 + OVERSTATEMENT * loose)
        return torch.where(loose > LARGEST_DEVIATION, math.inf, squared)

    def clipped_sum(self, c: Tensor, mask: Tensor | None) -> Tensor:
        """Return the sum of all records' projected gradients, as a vector of coordinates.

        ``c`` has the clipping factors. Records with a False ``mask`` count as 0.
        """
        gv, gtu = (per_example.clipped_sum(c, *part, mask=mask) for part in self.seen)
        self.seen, at = [], self.point
        # G V and G^T U for G = sum_j c_j G_j.
        return from_products(gv, gtu, Point(*map(per_example.exact, at))).flat()

    def apply(self, mean: Tensor, group: dict[str, Any], *, plain: bool) -> None:
        """Update the low-rank matrix by a step along a released mean tangent vector.

        ``group`` is the optimizer's parameter group, with the learning rate and the weight decay.
        """
        with torch.no_grad():
            at = self.point
            # s <- (1 - lr wd) s.
            at = Point(at.u, at.s * (1.0 - group["lr"] * group.get("weight_decay", 0.0)), at.v)
            xi = from_flat(mean, at)
            # m <- beta m + (1 - beta) xi, the first m being xi.
            self.moment = xi if self.moment is None else self.moment.moved_to(xi, self.steps.momentum)
            ready = self.steps.kind == "adaptive" and float(at.s[-1]) > self.steps.floor
            new = self.adaptive(at, xi, group["lr"]) if ready else retracted(at, self.moment, group["lr"])
            self.moment = transported(self.moment, at, new)
            self.move(new)

    @torch.no_grad()
    def move(self, new: Point) -> None:
        for parameter, value in zip(self.trained.parameters, new, strict=True):
            parameter.copy_(value)

    def adaptive(self, at: Point, xi: _Tangent, rate: float) -> Point:
        """Return the matrix after an adaptive step from the matrix ``at``.

        ``xi`` is the released tangent vector, and ``rate`` the learning rate. The momentum of each balanced factor is
        divided by the root of its second moments.
        """
        assert self.moment is not None
        root = at.s.sqrt()
        a, b = at.u * root, at.v * root
        old, one = self.factors, torch.eye(len(root), dtype=a.dtype, device=a.device)
        # A rotation brings the factors closest to those of the last step, so that second moments can be averaged.
        turn = one if old is None else _polar(a.T @ old[0] + b.T @ old[1])
        a, b = a @ turn, b @ turn
        ascent = [part @ turn for part in lifted(self.moment, at)]
        fresh = [part @ turn for part in lifted(xi, at)]
        moments, steps = [], []
        for i, (side, part) in enumerate(zip((len(a), len(b)), fresh, strict=True)):
            # V_A <- beta2 V_A + (1 - beta2) dA^T dA / m.
            now = part.T @ part / side
            beta = self.steps.beta2
            moments.append(now if self.second is None else beta * self.second[i] + (1.0 - beta) * now)
            # lam_A = ridge tr(D)/r.
            ridge = self.steps.ridge * noise_moment(at.s, side, self.deviation * self.noise_scale).sum() / len(root)
            # m_A is the momentum of A, V_A the second moment of its releases, and lam_A its ridge.
            # U_A = m_A (V_A + lam_A I)^-1/2.
            steps.append(ascent[i] @ _inverse_root(moments[i], ridge))
        self.factors, self.second = (a, b), (moments[0], moments[1])
        # Z - lr (U_A B^T + A U_B^T), as Z = A B^T.
        return _moved(a, steps[0], one, b, steps[1], rate)


def _check_prism_layer(algorithm: str, trained: Trained) -> None:
    """Raise an error unless the algorithm is PRISM and the tensor is in a PRISM layer."""
    if algorithm != "prism" or not isinstance(trained, _TrainedLowRank):
        expected, remedy = "prism, with layers from add_prism only", f"freeze {trained.name}, or use another algorithm"
        raise InvalidParameterError("algorithm", algorithm, expected, remedy)


RECORDS = (
    Algorithm(
        name="prism", rank="module", view=_TangentView, check_layer=_check_prism_layer, adapt=add_prism,
        summary="Clip and noise the tangent vectors of a low-rank matrix, and step on the manifold of its rank.",
    ),
)  # fmt: skip
