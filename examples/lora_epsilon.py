"""Epsilon of a LoRA fine-tuning run, from the sizes in a model's configuration.

It shows what a run costs where every step clips the whole gradients, adds noise and draws fresh projections: under one
clip for all layers, with a clip for each layer, and by the plain Gaussian accounting of the same noise. A run that
clips the gradients of LoRA's own factors has the last number, not the first two.

Needs: the core only.
Run:   python examples/lora_epsilon.py
Prints the adapted layers, epsilons of about 0.91 (one clip), 0.75 (a clip for each layer) and 382 (Gaussian), and what
the second one takes for granted.
"""

import privproj
from privproj import M2, Gaussian, Layer

MODEL = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
LORA = {"r": 16, "target_modules": ["q_proj", "v_proj", "down_proj"]}
INPUTS = {"q_proj": "hidden_size", "v_proj": "hidden_size", "down_proj": "intermediate_size"}
RUN = {"steps": 2000, "sampling_rate": 0.01}
NOISE_MULTIPLIER = 0.2  # standard deviation of the noise over the clip C; with a clip for each layer C^2 is their sum
DELTA = 1e-6


def adapted_layers(model: dict, lora: dict) -> tuple[Layer, ...]:
    """One entry for each adapted module: its inputs are projected to LoRA's rank in every block of the model."""
    blocks = model["num_hidden_layers"]
    return tuple(Layer(dim=model[INPUTS[name]], rank=lora["r"], count=blocks) for name in lora["target_modules"])


def main() -> None:
    layers = adapted_layers(MODEL, LORA)
    print("layers (inputs x rank x count):", ", ".join(map(str, layers)))
    releases = {
        "one clip for all layers": M2(layers=layers, noise_multiplier=NOISE_MULTIPLIER),
        "a clip for each layer": M2(layers=layers, clipping="per-layer", noise_multiplier=NOISE_MULTIPLIER),
        "without the projection": Gaussian(noise_multiplier=NOISE_MULTIPLIER),
    }
    answers = {name: privproj.epsilon(release, delta=DELTA, **RUN) for name, release in releases.items()}
    for name, answer in answers.items():
        print(f"{name}: epsilon = {answer.value} at delta {DELTA:g} ({answer.bound}, {answer.status})")
    for words in answers["a clip for each layer"].requirements:
        print("the second number assumes:", words)


if __name__ == "__main__":
    main()
