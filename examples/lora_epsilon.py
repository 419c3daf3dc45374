"""Compute the epsilon of a LoRA fine-tuning run from the layer sizes of a model.

Each step clips the gradients of the full weight matrices, adds noise, and projects the sum with fresh projections
(mechanism M2). The script prints epsilon for one clipping norm (joint clipping), for one clipping norm per layer, and
for the same noise without a projection (DP-SGD). If your run clips the gradients of the LoRA factors instead, only the
epsilon of DP-SGD applies.

Needs: no extra.
Run:   python examples/lora_epsilon.py
Prints the adapted layers, the requirements of per-layer clipping, and epsilons of about 0.91 (joint clipping), 0.75
(per-layer clipping) and 382 (DP-SGD, which needs a larger noise multiplier).
"""

import privproj
from privproj import M2, Gaussian, Layer

MODEL = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
LORA = {"r": 16, "target_modules": ["q_proj", "v_proj", "down_proj"]}
INPUTS = {"q_proj": "hidden_size", "v_proj": "hidden_size", "down_proj": "intermediate_size"}
RUN = {"steps": 2000, "sampling_rate": 0.01}
NOISE_MULTIPLIER = 0.2  # standard deviation of the noise / C; per-layer clipping: C^2 = sum of the squared norms
DELTA = 1e-6


def adapted_layers(model: dict, lora: dict) -> tuple[Layer, ...]:
    """Return the layers of each adapted module: input dimension, LoRA rank, number of blocks."""
    blocks = model["num_hidden_layers"]
    return tuple(Layer(dim=model[INPUTS[name]], rank=lora["r"], count=blocks) for name in lora["target_modules"])


def main() -> None:
    layers = adapted_layers(MODEL, LORA)
    print("layers (inputs x rank x count):", ", ".join(map(str, layers)))
    releases = {
        "joint clipping": M2(layers=layers, noise_multiplier=NOISE_MULTIPLIER),
        "per-layer clipping": M2(layers=layers, clipping="per-layer", noise_multiplier=NOISE_MULTIPLIER),
        "no projection": Gaussian(noise_multiplier=NOISE_MULTIPLIER),
    }
    results = {name: privproj.epsilon(release, delta=DELTA, **RUN) for name, release in releases.items()}
    for name, result in results.items():
        print(f"{name}: epsilon = {result.value} at delta {DELTA:g} ({result.bound}, {result.status})")
    for requirement in results["per-layer clipping"].requirements:
        print("per-layer clipping requires:", requirement)


if __name__ == "__main__":
    main()
