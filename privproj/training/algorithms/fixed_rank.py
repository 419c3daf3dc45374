"""The tangent space of rank-r matrices at ``Z = U diag(s) V^T`` in orthonormal bases: the algebra of PRISM.

``Z`` is m x n. A tangent vector is ``xi = U K V^T + Up V^T + U Vp^T`` with ``U^T Up = 0`` and ``V^T Vp = 0``, and
``|xi|^2 = |K|^2 + |Up|^2 + |Vp|^2``. Since these coordinates are unique, isotropic noise on them is isotropic noise on
the tangent space, whose dimension is ``r (m + n - r)``. No Gram matrix is inverted, so small singular values do no harm
here. Source: arXiv 2606.00944, in (U, s, V) coordinates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Point:
    """A matrix ``Z = U diag(s) V^T``: ``U`` (m x r) and ``V`` (n x r) orthonormal, ``s >= 0`` falling."""

    u: Tensor
    s: Tensor
    v: Tensor


@dataclass(frozen=True)
class Tangent:
    """A tangent vector ``xi = U K V^T + Up V^T + U Vp^T``: ``K`` is r x r, ``Up`` m x r, ``Vp`` n x r."""

    k: Tensor
    up: Tensor
    vp: Tensor

    def flat(self) -> Tensor:
        """All coordinates in a row: ``K``, then ``Up``, then ``Vp``."""
        return torch.cat([self.k.flatten(), self.up.flatten(), self.vp.flatten()])

    def scaled(self, factor: float) -> "Tangent":
        """The tangent vector times a number."""
        return Tangent(factor * self.k, factor * self.up, factor * self.vp)

    def plus(self, other: "Tangent") -> "Tangent":
        """The sum of two tangent vectors at one point."""
        return Tangent(self.k + other.k, self.up + other.up, self.vp + other.vp)


def size(m: int, n: int, r: int) -> int:
    """How many coordinates are released; their law has ``r (m + n - r)`` dimensions."""
    # K has r r numbers, Up m r, Vp n r.
    return r * (r + m + n)


def from_flat(row: Tensor, at: Point) -> Tangent:
    """The tangent vector of coordinates in a row, ``Up`` and ``Vp`` made orthogonal to the bases."""
    (m, r), n = at.u.shape, at.v.shape[0]
    k, up, vp = row.split([r * r, m * r, n * r])
    return _orthogonal(Tangent(k.view(r, r), up.view(m, r), vp.view(n, r)), at)


def _orthogonal(xi: Tangent, at: Point) -> Tangent:
    """The tangent vector with ``((I - U U^T) Up, (I - V V^T) Vp)`` in place of ``Up`` and ``Vp``."""
    return Tangent(xi.k, xi.up - at.u @ (at.u.T @ xi.up), xi.vp - at.v @ (at.v.T @ xi.vp))


def from_products(gv: Tensor, gtu: Tensor, at: Point) -> Tangent:
    """The projection ``P_T(G)`` of a matrix ``G`` (m x n) from ``G V`` (m x r) and ``G^T U`` (n x r)."""
    # K = U^T G V, Up = (I - U U^T) G V, Vp = (I - V V^T) G^T U.
    return _orthogonal(Tangent(at.u.T @ gv, gv, gtu), at)


def truncated(left: Tensor, core: Tensor, right: Tensor, rank: int) -> Point:
    """The best approximation of rank ``rank`` to ``left core right^T``, whose factors have few columns."""
    # left core right^T = Ql (Rl core Rr^T) Qr^T, and the inner matrix is small.
    ql, rl = torch.linalg.qr(left)
    qr, rr = torch.linalg.qr(right)
    a, s, bt = torch.linalg.svd(rl @ core @ rr.T)
    return Point(ql @ a[:, :rank], s[:rank], qr @ bt[:rank].T)


def retracted(at: Point, xi: Tangent, rate: float) -> Point:
    """The retraction ``Retr_r(Z - rate xi)``: the truncated singular value decomposition, in ``O((m + n) r^2)``."""
    # Z - rate xi = [U, Up] [[diag(s) - rate K, -rate I], [-rate I, 0]] [V, Vp]^T.
    zero = torch.zeros_like(xi.k)
    one = torch.eye(len(xi.k), dtype=xi.k.dtype, device=xi.k.device)
    core = torch.cat(
        [torch.cat([torch.diag(at.s) - rate * xi.k, -rate * one], 1), torch.cat([-rate * one, zero], 1)], 0
    )
    return truncated(torch.cat([at.u, xi.up], 1), core, torch.cat([at.v, xi.vp], 1), len(at.s))


def transported(xi: Tangent, old: Point, new: Point) -> Tangent:
    """The projection ``P_T'(xi)`` of a tangent vector at one point to the tangent space at another."""
    # xi V' = U (K V^T V' + Vp^T V') + Up V^T V', and likewise for xi^T U'.
    gv = old.u @ (xi.k @ (old.v.T @ new.v) + xi.vp.T @ new.v) + xi.up @ (old.v.T @ new.v)
    gtu = old.v @ (xi.k.T @ (old.u.T @ new.u) + xi.up.T @ new.u) + xi.vp @ (old.u.T @ new.u)
    return from_products(gv, gtu, new)


def lifted(xi: Tangent, at: Point) -> tuple[Tensor, Tensor]:
    """The horizontal lift ``(dA, dB)`` of a tangent vector to balanced factors ``A = U s^1/2``, ``B = V s^1/2``.

    It needs ``s > 0``. Then ``dA B^T + A dB^T = xi`` and ``A^T dA = dB^T B``. ``dA`` is m x r and ``dB`` n x r.
    """
    # X_ij = K_ij sqrt(s_j) / (s_i + s_j), (Y^T)_ij = sqrt(s_i) K_ij / (s_i + s_j).
    root, total = at.s.sqrt(), at.s[:, None] + at.s[None, :]
    x, yt = xi.k * root[None, :] / total, root[:, None] * xi.k / total
    # dA = U X + Up s^-1/2, dB = V Y + Vp s^-1/2.
    return at.u @ x + xi.up / root, at.v @ yt.T + xi.vp / root


def noise_moment(s: Tensor, side: int, deviation: float) -> Tensor:
    """The diagonal of ``E dA^T dA / m`` for lifted noise, whose coordinates have standard deviation ``tau``.

    ``side`` is ``m``, the number of rows of the factor. There is one number for each of the ``r`` singular values.
    """
    # (tau^2/m) ((m - r)/s_j + sum_i s_j/(s_i + s_j)^2).
    crossed = (s[None, :] / (s[:, None] + s[None, :]).square()).sum(0)
    return deviation**2 / side * ((side - len(s)) / s + crossed)


def inverse_root(moment: Tensor, ridge: Tensor | float) -> Tensor:
    """The matrix ``(V + ridge I)^-1/2`` for a symmetric ``V``; its eigenvalues below zero are taken as zero."""
    values, vectors = torch.linalg.eigh(moment)
    return (vectors / (values.clamp_min(0.0) + ridge).sqrt()) @ vectors.T


def polar(matrix: Tensor) -> Tensor:
    """The orthogonal factor of the polar decomposition of a square matrix."""
    left, _, right = torch.linalg.svd(matrix)
    return left @ right
