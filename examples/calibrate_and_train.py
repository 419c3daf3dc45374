"""Calibrate the noise multiplier for a target epsilon, train with it, and print the epsilon of the run.

The script trains a linear classifier on the digits of scikit-learn. Each step clips the gradient of each record, adds
noise to the sum, and projects the sum to a fresh random subspace of rank 16.

Needs: the extra torch.
Run:   python examples/calibrate_and_train.py
Prints a noise multiplier of about 1.33, the epsilon of the run (at most 3) and a test accuracy of about 88 %.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import privproj
from privproj.training import Method, PoissonBatches, make_private

EPSILON, DELTA, RANK, STEPS = 3.0, 1e-5, 16, 200
SAMPLING_RATE = 0.125  # fixed in advance; make_private rounds rates up to a multiple of 2^-24, and 0.125 is one


def main() -> None:
    x, y = load_digits(return_X_y=True)
    features, labels = torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)
    train, test = TensorDataset(features[:1400], labels[:1400]), (features[1400:], labels[1400:])
    module = torch.nn.Linear(64, 10)
    release = privproj.M2(dim=65, rank=RANK)  # 64 inputs and the bias
    needed = privproj.sigma(release, epsilon=EPSILON, delta=DELTA, steps=STEPS, sampling_rate=SAMPLING_RATE)
    print(f"noise multiplier {needed.value} meets epsilon {EPSILON:g} at delta {DELTA:g}")
    module, optimizer, loader = make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(train),
        algorithm=Method("m2", rank=RANK),
        max_grad_norm=1.0,
        noise_multiplier=needed.value,
        steps=STEPS,
        batches=PoissonBatches(rate=SAMPLING_RATE),
    )
    while len(loader):
        for batch in loader:
            optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
    print(f"run: epsilon = {optimizer.epsilon(DELTA).value} after {STEPS} steps")
    accuracy = (module(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"test accuracy = {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()
