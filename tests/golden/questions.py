"""What golden answers are asked: about three thousand rows, in public names and words of the command line alone."""

import json
import random
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from helpers import ROOT

from tests.harness.questions import question
from tests.reference.settings import REFUTED, Setting, settings

TARGETS = {"epsilon": {"delta": 1e-5}, "delta": {"epsilon": 1.0}, "sigma": {"epsilon": 1.0, "delta": 1e-5}}
PAGES = ("README.md", *(f"docs/{name}.md" for name in (
    "tutorial", "how-to-choose", "command-line", "samplers", "runs-and-ci", "certificates", "not-a-guarantee",
)))  # fmt: skip
"""The pages whose commands are asked; those of training and audits are asked by :func:`training`."""
ALGORITHMS = ("dp-sgd", "lora-fa", "lora-resampled", "flora", "m2", "m2-projected-clip", "m1", "prism", "dp-sft")
SEARCHES = ("rank", "rate", "steps")
DEAR = ("early", "early-exact-tail", "column-exact", "mixture-rdp", "good-event", "good-event-q")
"""Bounds whose every answer takes a tenth of a second and more."""
SAMPLERS = (("--batch-size", "64"), ("--sampling", "balls-in-bins", "--batches", "20"), ("--sampling", "fixed"))


@dataclass(frozen=True)
class Row:
    """Calls that are made one after another in one folder, which has these files.

    A call is the words of a command, or ``("evaluate", quantity, parameters)`` for the door of that name.
    """

    name: str
    calls: tuple[tuple, ...]
    files: dict[str, str] = field(default_factory=dict)


def options(given: dict) -> list[str]:
    """Parameters as words."""
    return [
        word
        for name, value in given.items()
        for each in (value if isinstance(value, (list, tuple)) else [value])
        for word in (f"--{'layer' if name == 'layers' else name.replace('_', '-')}", str(each))
    ]


def without_target(setting: Setting) -> dict:
    """The setting as the entry of a file, without a target."""
    return {name: value for name, value in setting.as_entry()[1].items() if name not in ("epsilon", "delta")}


def by_settings() -> Iterator[Row]:
    """Every setting of the reference suite by its own door, and what it is about as epsilon, delta and sigma."""
    seen = set()
    for setting in settings():
        yield Row(f"evaluate {setting}", (("evaluate", setting.quantity, dict(setting.parameters)),))
        if not setting.is_for_every_door:
            continue
        given = without_target(setting)
        mechanism = given.pop("mechanism")
        for query, target in TARGETS.items():
            if query == "sigma" and given.pop("noise_multiplier", None) is None:
                continue
            words = [query, mechanism, *options({**given, **target})]
            words += ["--allow-refuted"] * (setting.bound in REFUTED)
            if (key := " ".join(words)) not in seen:
                seen.add(key)
                yield Row(key, ((*words, "--json"),))


def by_harness(count: int = 1500) -> Iterator[Row]:
    """Random questions, one for each seed, but searches in bounds that take minutes; one in ten as text."""
    for seed in range(count):
        asked = question(seed)
        if asked.query in SEARCHES and asked.bound in DEAR:
            continue
        words = shlex.split(asked.command())[1:]
        yield Row(f"seed {seed}", ((*words, *(["--json"] if seed % 10 else [])),))


def by_pages() -> Iterator[Row]:
    """Every block of commands of a page, those of one page in one folder."""
    for page in PAGES:
        blocks = re.findall(r"```\n(\$ .*?)```", (ROOT / page).read_text(), re.DOTALL)
        said = [
            part.replace("\\\n", " ").splitlines()[0] for b in blocks for part in re.split(r"^\$ ", b, flags=re.M)[1:]
        ]
        calls = [shlex.split(line.split(";")[0]) for line in said]
        plain = [tuple(words[1:]) for words in calls if words[0] == "privproj" and words[1] not in ("train", "audit")]
        yield Row(page, tuple(plain), examples())


def examples() -> dict[str, str]:
    """The examples that are files of data."""
    kept = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".toml", ".jsonl"))
    return {f"examples/{path.name}": path.read_text() for path in kept}


def by_examples() -> Iterator[Row]:
    """Every example under the command that reads it, as text and as JSON."""
    asked = (
        "run examples/run.toml --delta 1e-5",
        "run examples/events.toml --delta 1e-5",
        "check examples/bounds.toml",
        "sweep examples/grid.toml -o table.csv",
        "ledger examples/ledger.jsonl",
        "verify examples/ledger.jsonl",
        "remaining examples/run.toml --epsilon 40 --delta 1e-5",
    )
    for words in asked:
        yield Row(words, ((*words.split(),), (*words.split(), "--json")), examples())


def by_run_files(count: int = 200) -> Iterator[Row]:
    """Settings as run files of one phase, and of two."""
    drawn = [s for s in settings() if s.is_for_every_door and s.bound not in REFUTED]
    random.Random(1).shuffle(drawn)
    for i, setting in enumerate(drawn[:count]):
        other = {"name": "other", "mechanism": "gaussian", "noise_multiplier": 30}
        data = {"phase": [without_target(setting), other][: 1 + i % 4 // 3]}
        yield Row(f"run {setting}", (("run", "run.json", "--delta", "1e-5", "--json"),), {"run.json": json.dumps(data)})


def by_sweeps(count: int = 60) -> Iterator[Row]:
    """Grids of 72 points, which are asked in columns, and of a few, which are not."""
    noises = [0.25, 0.4, 0.7, 1.0, 1.6, 3.0]
    shapes = {
        "m2": {"dim": [256, 2048], "rank": [4, 32]},
        "gaussian": {"adaptive_clipping_sigma": [2, 10, 20, 30]},
        "sketch-public": {"rank": [2, 8, 64, 500]},
    }
    for i in range(count):
        name = list(shapes)[i % len(shapes)]
        query = ("epsilon", "delta", "sigma")[i // 3 % 3]
        whole = i % 5 != 4
        noise = {} if query == "sigma" else {"noise_multiplier": noises if whole else noises[:2]}
        wide = {"delta": [1e-5, 1e-7, 1e-3]} if query == "epsilon" else {"epsilon": [0.5, 1.0, 4.0]}
        more = {"delta": [10.0**-k for k in range(2, 8)] if whole else [1e-5]} if query == "sigma" else {}
        run = {} if i % 2 else {"sampling_rate": 0.01 * (1 + i % 4), "steps": 1}
        data = {"mechanism": name, "query": query, **run, "grid": {**shapes[name], **noise, **wide, **more}}
        yield Row(
            f"sweep {i} {name} {query}", (("sweep", "grid.json", "-o", "table.csv"),), {"grid.json": json.dumps(data)}
        )


def by_certificates(count: int = 40) -> Iterator[Row]:
    """Certificates, and what their verification says."""
    words = [
        "gaussian --noise-multiplier {z}",
        "laplace --noise-multiplier {z}",
        "sketch-public --rank 8 --noise-multiplier {z}",
        "m2 --dim 64 --rank 4 --noise-multiplier {z}",
        "gaussian --noise-multiplier {z} --sampling-rate .05 --steps 20",
    ]
    for i in range(count):
        asked = words[i % len(words)].format(z=round(0.6 + 0.15 * i, 2)).split()
        target = (("epsilon", "--delta", f"1e-{4 + i % 5}"), ("delta", "--epsilon", "1"))[i // 5 % 2]
        calls = ((target[0], *asked, *target[1:], "--certificate", "proof.json", "--json"), ("verify", "proof.json"))
        yield Row(f"certificate {i} {' '.join(asked)}", calls)


def by_ledgers() -> Iterator[Row]:
    """A ledger that ends at each of its lines: what was spent, what is left, and what is sure."""
    lines = (ROOT / "examples/ledger.jsonl").read_text().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        calls = (("ledger", "book"), ("ledger", "book", "--json"), ("verify", "book"), ("verify", "book", "--json"))
        yield Row(f"ledger of {count} lines", calls, {"book": "".join(lines[:count])})


def training() -> Iterator[Row]:
    """Six steps of every algorithm under every sampler: weights, ledger and report of a repeatable run."""
    for algorithm in ALGORITHMS:
        for sampler in SAMPLERS:
            # A run of 6 steps has 3 in the first stage of dp-sft, one for each direction at the least.
            rank = () if algorithm == "dp-sgd" else ("--rank", "2" if algorithm == "dp-sft" else "4")
            words = ("train", "--data", "digits", "--mechanism", algorithm, *rank, "--noise-multiplier", "2", *sampler)
            calls = ((*words, "--steps", "6", "--insecure-seed", "0", "--device", "cpu", "--hidden", "8", "-o", "out"),
                     ("ledger", "out/ledger.jsonl", "--json"), ("verify", "out/ledger.jsonl"))  # fmt: skip
            yield Row(f"train {algorithm} {sampler[1]}", calls)


GROUPS = {
    "settings": by_settings,
    "harness": by_harness,
    "pages": by_pages,
    "examples": by_examples,
    "run files": by_run_files,
    "sweeps": by_sweeps,
    "certificates": by_certificates,
    "ledgers": by_ledgers,
    "training": training,
}


def rows(groups: tuple[str, ...] = tuple(GROUPS)) -> list[Row]:
    """All rows of these groups."""
    return list(chain.from_iterable(GROUPS[name]() for name in groups))
