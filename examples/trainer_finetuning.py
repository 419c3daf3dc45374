"""Fine-tune a language model privately with the Trainer of transformers.

The model is a tiny Llama with random weights, wrapped by PEFT, so nothing is downloaded. Each private record is a short
text that starts at a random token and counts upwards. "lora-fa" trains the B factors of the adapters.

Needs: the extras torch and peft.
Run:   python examples/trainer_finetuning.py
Prints the loss on new texts before training (about 2.8) and after it (about 2), and the epsilon of the run (at most 3).
"""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from privproj.integrations.transformers import PrivateTrainer
from privproj.training import prepare_peft

VOCABULARY, EPSILON, DELTA = 16, 3.0, 1e-5


def texts(count: int) -> list[dict[str, torch.Tensor]]:
    """Return records of 12 tokens that start at a random token and count upwards."""
    tokens = (torch.randint(0, VOCABULARY, (count, 1)) + torch.arange(12)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    torch.set_num_threads(1)  # the matrices are too small for several threads
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
    lora = LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes)), lora)
    # The folder contains the checkpoints and the ledger. To resume an interrupted run, use a permanent folder.
    with tempfile.TemporaryDirectory() as folder:
        trainer = PrivateTrainer(
            model=prepare_peft(model, "lora-fa"),
            args=TrainingArguments(
                folder, per_device_train_batch_size=50, gradient_accumulation_steps=2, num_train_epochs=8,
                learning_rate=0.05, logging_steps=40, report_to="none", disable_tqdm=True,
            ),
            train_dataset=texts(2000),
            eval_dataset=texts(500),
            privacy={"algorithm": "lora-fa", "epsilon": EPSILON, "delta": DELTA, "max_grad_norm": 1.0},
        )  # fmt: skip
        print(f"loss before: {trainer.evaluate()['eval_loss']:.2f}")
        steps = trainer.train().global_step
        print(f"loss after:  {trainer.evaluate()['eval_loss']:.2f}")
        print(f"run: epsilon = {trainer.epsilon().value} at delta {DELTA:g}, {steps} steps")


if __name__ == "__main__":
    main()
