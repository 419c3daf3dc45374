"""Audit the release code of a correct claim, of a refuted claim, and of a mechanism without privacy.

The first two audits pass a canary gradient through the code that training uses. The second one injects a bug: it uses
one projection for all steps. The third audit shows that a matrix times a Wishart matrix is not private without noise.
An audit can refute a claim but cannot confirm one.

Needs: the extra torch.
Run:   python examples/audit_a_claim.py
Prints the claimed epsilon (1.060), "not refuted" for the code as it is, "refuted" for the injected bug, and an area
under the curve of 1 for the Wishart matrix. Every release distinguishes the two queries.
"""

import numpy as np

from privproj import M2
from privproj.contrib.audit import Scene, judge_scene, symmetry_test

RELEASE, STEPS, DELTA, CONFIDENCE = M2(dim=64, rank=2, noise_multiplier=1.0), 4, 1e-3, 0.999
RUNS = 600  # with the canary, and as many without


def audit(fault: str | None) -> None:
    """Run the attack and print whether it refutes the epsilon that privproj claims for RELEASE."""
    scene = Scene(mechanism=RELEASE, steps=STEPS, fault=fault, seed=1)
    verdict = judge_scene(scene, scene.scores(RUNS, RUNS), DELTA, CONFIDENCE, claim=None)
    print(f"{fault or 'no fault'}: the claim epsilon = {verdict.claimed_epsilon:.3f} is {verdict.verdict}")
    print(
        f"  the attack shows at least {verdict.epsilon_lower:.3f}; so many runs can show {verdict.ceiling:.3f} at most"
    )


def main() -> None:
    audit(fault=None)
    audit(fault="reused-projection")
    query = np.random.default_rng().standard_normal((64, 8))
    neighbor = query.copy()
    neighbor[0, 0] += 1.0
    test = symmetry_test(query, neighbor, rank=16, draws=200)
    print(f"Wishart matrix without noise: area under the curve {test.auc:g}; every release separates: {test.separates}")


if __name__ == "__main__":
    main()
