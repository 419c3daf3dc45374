"""Compare two ways of private linear regression: a sketch of the data, and Gaussian noise on X^T X.

Least squares needs only the matrix X^T X, where the columns of X are the features and the target. The first way
estimates X^T X from one private sketch of X. The second way adds Gaussian noise to X^T X.

Needs: the extra torch (for scikit-learn and its datasets).
Run:   python examples/private_regression.py
Prints the mean squared error on test records divided by the variance of the target, for both ways and three epsilons.

Do not use the script on private data: its random numbers are predictable, and it treats the ranges of the features as
public.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes

from privproj import Gaussian, epsilon, sigma
from privproj.contrib.mixing import Mixing, mixing_plan

DELTA, RANK, SEEDS = 1e-6, 300, 10


def load(read: object) -> np.ndarray:
    """Return features and target of a dataset, scaled to [-1, 1], with rows clipped to norm 1."""
    rows = np.column_stack(read(return_X_y=True))  # pyright: ignore[reportCallIssue]
    low, high = rows.min(axis=0), rows.max(axis=0)
    rows = 2.0 * (rows - low) / (high - low) - 1.0
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))


def products_from_sketch(rows: np.ndarray, plan: Mixing, rng: np.random.Generator) -> np.ndarray:
    """Release the smallest eigenvalue with noise, then a sketch; return the X^T X estimated from the sketch."""
    released = np.linalg.eigvalsh(rows.T @ rows)[0] + plan.eigen_noise * rng.standard_normal()
    noise = np.sqrt(plan.noise_variance(released, 1.0)) * rng.standard_normal((RANK, rows.shape[1]))
    sketch = rng.standard_normal((RANK, len(rows))) @ rows + noise
    return sketch.T @ sketch / RANK


def products_with_noise(rows: np.ndarray, z: float, rng: np.random.Generator) -> np.ndarray:
    """Return X^T X (sensitivity 1) plus symmetric noise and a ridge as large as the noise."""
    noise = z * rng.standard_normal((rows.shape[1], rows.shape[1]))
    return rows.T @ rows + 0.5 * (noise + noise.T) + z * np.sqrt(2.0 * rows.shape[1]) * np.eye(rows.shape[1])


def error(products: np.ndarray, test: np.ndarray) -> float:
    """Return the mean squared error of least squares divided by the variance of the target."""
    slopes = np.linalg.solve(products[:-1, :-1], products[:-1, -1])
    return float(np.mean((test[:, -1] - test[:, :-1] @ slopes) ** 2) / np.var(test[:, -1]))


def main() -> None:
    for eps in (1.0, 4.0, 16.0):
        plan = mixing_plan(rank=RANK, epsilon=eps, delta=DELTA)
        z = float(sigma(Gaussian(), epsilon=eps, delta=DELTA).value or 0.0)
        print(f"epsilon = {epsilon(plan, delta=DELTA).value:.3f} at delta = {DELTA:g}")
        for name, read in (("diabetes", load_diabetes), ("breast cancer", load_breast_cancer)):
            rows, found = load(read), []
            for seed in range(SEEDS):
                rng = np.random.default_rng(seed)
                train, test = np.split(rng.permutation(rows), [int(0.8 * len(rows))])
                ways = products_from_sketch(train, plan, rng), products_with_noise(train, z, rng), train.T @ train
                found.append([error(products, test) for products in ways])
            sketch, noisy, plain = np.median(found, axis=0)
            print(f"  {name}: sketch {sketch:.3f}, Gaussian noise {noisy:.3f}, not private {plain:.3f}")


if __name__ == "__main__":
    main()
