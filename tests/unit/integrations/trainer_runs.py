"""Small models of transformers, texts, and private Trainers over them, for the tests of the Trainer."""

import os
import signal

import torch
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: F401
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from privproj.integrations.transformers import PrivateTrainer
from privproj.training import prepare_peft

PRIVACY = {"algorithm": "dp-sgd", "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0}
VOCABULARY, IGNORED = 16, -100
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}  # fmt: skip


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


def head_only():
    """A model of which only the head is trained."""
    model = llama().requires_grad_(False)
    model.lm_head.requires_grad_(True)
    return model


def texts(count=12, seed=0):
    """Texts of 3 to 10 tokens, of which the first one or two have no label."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        length = int(torch.randint(3, 11, (), generator=draw))
        tokens = torch.randint(1, VOCABULARY, (length,), generator=draw)
        found.append({"input_ids": tokens, "labels": torch.where(torch.arange(length) < 1 + i % 2, IGNORED, tokens)})
    return found


def padded(records):
    """A batch of texts, padded on the right to the longest one."""
    tokens = [r["input_ids"] for r in records]
    labels = [r["labels"] for r in records]
    batch = {"input_ids": pad_sequence(tokens, batch_first=True)}
    batch["attention_mask"] = pad_sequence([torch.ones_like(t) for t in tokens], batch_first=True)
    tokenwise = labels[0].dim() == 1 and len(labels[0]) == len(tokens[0])
    batch["labels"] = pad_sequence(labels, True, IGNORED) if tokenwise else torch.stack(labels)
    return batch


def trainer(folder, model=None, data=None, privacy=None, kind=PrivateTrainer, **options):
    """A private Trainer over 12 texts, six in a release, unless told otherwise."""
    given = {name: options.pop(name) for name in ("optimizers", "eval_dataset", "compute_loss_func") if name in options}
    settings = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 2,
        "learning_rate": 0.1,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return kind(
        head_only() if model is None else model,
        TrainingArguments(str(folder), **{**settings, **options}),
        data_collator=padded,
        train_dataset=texts() if data is None else data,
        privacy=privacy or PRIVACY,
        **given,
    )


def adapted(algorithm="lora-fa"):
    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"])
    return prepare_peft(get_peft_model(llama(), lora), algorithm)


def classes(model_labels):
    """Texts with one label (or one row of labels) each."""
    return [{"input_ids": t["input_ids"], "labels": y} for t, y in zip(texts(), model_labels, strict=True)]


def tokens_of(labels):
    """Texts whose tokens have labels below so many."""
    return [{**t, "labels": torch.where(t["labels"] < 0, IGNORED, t["labels"] % labels)} for t in texts()]


KINDS = {
    "causal": lambda: (llama(), texts()),
    "gpt-2": lambda: (GPT2LMHeadModel(GPT2Config(**GPT2)), texts()),
    "masked": lambda: (BertForMaskedLM(BertConfig(**BERT)), texts()),
    "tokens": lambda: (BertForTokenClassification(BertConfig(**BERT, num_labels=3)), tokens_of(3)),
    "classes": lambda: (BertForSequenceClassification(BertConfig(**BERT, num_labels=3)), classes(torch.arange(12) % 3)),
    "regression": lambda: (BertForSequenceClassification(BertConfig(**BERT, num_labels=1)), classes(torch.rand(12))),
    "several classes": lambda: (
        BertForSequenceClassification(BertConfig(**BERT, num_labels=3)),
        classes((torch.rand(12, 3) > 0.5).float()),
    ),
    "encoder and decoder": lambda: (
        T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=16,
                d_kv=8,
                d_ff=16,
                num_layers=1,
                num_heads=2,
                decoder_start_token_id=0,
                dropout_rate=0.0,
            )
        ),
        texts(),
    ),
}


class Killed(TrainerCallback):
    """Ends the process after so many steps, as a crash would."""

    def __init__(self, after):
        self.after = after

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


class Weighted(PrivateTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 2.0 * super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class ContrastiveLoss(PrivateTrainer):
    """Compares the records of a batch with one another."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        scores = model(**inputs).logits.mean(1)
        return torch.nn.functional.cross_entropy(scores @ scores.T, torch.arange(len(scores)))


class CountedLoss(PrivateTrainer):
    """Keeps the logits of its last call."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.outputs = model(**inputs)
        return self.outputs.loss


class Bags(torch.nn.Module):
    """A model of no known class, with a loss of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)

    def forward(self, input_ids, attention_mask, labels):
        mean = (self.embed(input_ids) * attention_mask[..., None]).mean(1)
        return {"loss": torch.nn.functional.cross_entropy(self.head(mean), input_ids[:, -1])}


class Stream(IterableDataset):
    """Texts without an index."""

    def __iter__(self):
        yield from texts()


class Stop(TrainerCallback):
    """Stops after four steps."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 4


class Plain(Trainer):
    """A subclass of Trainer that knows nothing of privacy."""


class Both(PrivateTrainer, Plain):
    """Any subclass of Trainer, made private."""
