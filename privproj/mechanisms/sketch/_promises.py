"""What the data must promise for the bounds of the secret sketch, and where a sketch has no bound at all."""

from privproj.mechanisms import Sketch


def matrix_promises(mechanism: Sketch) -> tuple[str, ...]:
    """The promises on norms and on the eigenvalue floor; none where clipping enforces them and no floor is used."""
    if mechanism.gamma is not None:
        return (
            "(lambda_min(Q Q^T) + sigma_g^2/sigma_A^2) / |Q Q^T - Q' Q'^T|_F >= "
            f"{mechanism.gamma:g} for all neighbours",
        )
    floor = (f"lambda_min(Q Q^T) >= {mechanism.eigen_floor:g} for every data set",) if mechanism.eigen_floor else ()
    norms = [(f"|Q - Q'|_F <= {mechanism.sensitivity:g} for all neighbours", mechanism.sensitivity)]
    norms += [(f"|Q|_F <= {mechanism.frobenius_bound or 0:g} for every data set", mechanism.frobenius_bound)]
    return (*floor, *(() if mechanism.enforced else (words for words, size in norms if size is not None)))


def column_promises(mechanism: Sketch) -> tuple[str, ...]:
    """The promise that one record is one column of ``Q``, and those on norms and on the eigenvalue floor."""
    one = "a record is one column of Q, so that Q Q^T - Q' Q'^T has rank one"
    if mechanism.gamma is not None:
        return (one, f"(lambda_min(Q Q^T) + sigma_g^2/sigma_A^2) / B_S^2 >= {mechanism.gamma:g}, B_S the column's norm")
    return (one, *matrix_promises(mechanism))


def refuses_infinite_divergence(mechanism: Sketch) -> str | None:
    """Why there is no bound at ``Gamma <= 1``: the divergence may be infinite; None above."""
    if mechanism.gamma_of_matrices <= 1.0:
        return (
            f"expected gamma above 1, got {mechanism.gamma_of_matrices:.4g}: the Renyi divergence may be infinite; "
            "use more noise, or exact-rank1 where a record is one column"
        )
    return None


def has_several_layers(mechanism: Sketch) -> bool:
    """True if one release has several sketches, whose losses add only if they are independent."""
    return mechanism.layer_count > 1
