"""Audit a correct program, a program with a bug, and a mechanism without privacy.

The first audit runs the release code of training with and without a canary gradient. The second audit does the same
with a bug: all steps use one projection. The third audit shows that the product of a matrix and a Wishart matrix is not
private. An audit can refute a claimed epsilon but cannot confirm it.

Needs: the extra torch.
Run:   python examples/audit_a_claim.py
Prints the claimed epsilon (1.060), "not refuted" for the correct code, and "refuted" for the code with the bug. For the
Wishart matrix, it prints the area under the ROC curve of an attack. The area is 1, so the attack is always correct.
"""

import numpy as np

from privproj import M2
from privproj.contrib.audit import AuditExperiment, assess_experiment, symmetry_test

RELEASE, STEPS, DELTA, CONFIDENCE = M2(dim=64, rank=2, noise_multiplier=1.0), 4, 1e-3, 0.999
RUNS = 600  # runs with the canary, and as many without it


def audit(bug: str | None) -> None:
    """Run the attack and print whether it refutes the epsilon that privproj claims for RELEASE."""
    experiment = AuditExperiment(mechanism=RELEASE, steps=STEPS, fault=bug, seed=1)
    verdict = assess_experiment(experiment, experiment.scores(RUNS, RUNS), DELTA, CONFIDENCE, claim=None)
    print(f"{bug or 'no bug'}: the claim epsilon = {verdict.claimed_epsilon:.3f} is {verdict.verdict}")
    print(f"  lower bound from the attack: epsilon >= {verdict.epsilon_lower:.3f}")
    print(f"  largest epsilon that {2 * RUNS} runs can detect: {verdict.ceiling:.3f}")


def main() -> None:
    audit(bug=None)
    audit(bug="reused-projection")
    query = np.random.default_rng().standard_normal((64, 8))
    neighbor = query.copy()
    neighbor[0, 0] += 1.0
    test = symmetry_test(query, neighbor, rank=16, draws=200)
    print(f"Wishart matrix without noise: area under the ROC curve {test.auc:g}")
    print(f"  every release distinguishes the inputs: {test.separates}")


if __name__ == "__main__":
    main()
