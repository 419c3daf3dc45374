"""Fine-tune a LoRA model of PEFT privately, with your own training loop.

The model is a tiny Llama with random weights, so nothing is downloaded. Each private record is a short text that starts
at a random token and counts upwards. The algorithm "m2" trains the full weight matrices with random projections. To
train the B factors of the LoRA adapters instead, set ALGORITHM to "lora-fa".

Needs: the extras torch and peft.
Run:   python examples/private_finetuning.py
Prints the loss on new texts before training (about 2.8) and after it (about 1.75), and the epsilon of the run (at most
3).
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from privproj.training import make_private, prepare_peft

ALGORITHM, EPSILON, DELTA, EPOCHS, VOCABULARY = "m2", 3.0, 1e-5, 8, 16


def texts(count: int) -> torch.Tensor:
    """Return records of 12 tokens that start at a random token and count upwards."""
    return (torch.randint(0, VOCABULARY, (count, 1)) + torch.arange(12)) % VOCABULARY


def main() -> None:
    torch.set_num_threads(1)  # the matrices are too small for several threads
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"])
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes)), lora)
    model = prepare_peft(model, ALGORITHM)  # before the optimizer, because it selects the trained parameters
    model, optimizer, loader = make_private(
        module=model,
        optimizer=torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02),
        data_loader=DataLoader(texts(2000), batch_size=100),
        algorithm=ALGORITHM,
        max_grad_norm=1.0,
        epsilon=EPSILON,
        delta=DELTA,
        epochs=EPOCHS,
    )
    fresh = texts(500)
    print(f"loss before: {model(input_ids=fresh, labels=fresh).loss.item():.2f}")
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.step_on(lambda tokens: model(input_ids=tokens, labels=tokens).loss, batch)
    print(f"loss after:  {model(input_ids=fresh, labels=fresh).loss.item():.2f}")
    print(f"run: epsilon = {optimizer.epsilon(DELTA).value} at delta {DELTA:g}, {len(loader)} steps left")


if __name__ == "__main__":
    main()
