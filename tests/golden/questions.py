"""Queries of the golden comparison: some three thousand rows of calls, in public names and command lines alone.

Only recording and the check of row names need this module; ``answers.py`` replays the stored rows without it.
"""

import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.differential.queries import query_of_seed
from tests.reference.settings import REFUTED, Setting, settings

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]
TARGETS = {"epsilon": {"delta": 1e-5}, "delta": {"epsilon": 1.0}, "sigma": {"epsilon": 1.0, "delta": 1e-5}}
# Pages whose commands are run; those of training and audits are in the group "training".
PAGES = ("README.md", *(f"docs/{name}.md" for name in (
    "tutorial", "how-to-choose", "command-line", "samplers", "runs-and-ci", "certificates", "not-a-guarantee",
)))  # fmt: skip
ALGORITHMS = (
    "dp-sgd", "lora-fa", "lora-resampled", "flora", "m2", "m2-projected-clip", "projected-dp-sgd", "prism", "dp-sft",
)  # fmt: skip
SEARCHES = ("rank", "rate", "steps")
SLOW_BOUNDS = ("early", "early-exact-tail", "column-exact", "mixture-rdp", "good-event", "good-event-q")  # above 0.1 s
SAMPLERS = (("--batch-size", "64"), ("--sampling", "balls-in-bins", "--batches", "6"), ("--sampling", "fixed"))
NO_JSON = {"report": None, "curve": ["--style", "json"]}  # what asks for JSON where --json does not; None: nothing does


def row(name: str, *calls: str | list[str] | dict[str, Any], files: dict[str, str] | None = None) -> Row:
    """Return a row: calls made one after another in a folder with these files.

    A call is a command line without ``privproj``, or a call of Python as :func:`api` returns it.
    """
    return {"name": name, "calls": [c.split() if isinstance(c, str) else c for c in calls], "files": files or {}}


def api(call: str, *args: Any, read: tuple[Any, ...] = (), **keywords: Any) -> dict[str, Any]:
    """Return a call of a public name, and the attributes and methods that are read from its result, in order."""
    reads = [[item, {}] if isinstance(item, str) else list(item) for item in read]
    return {"call": call, "args": list(args), "keywords": keywords, "read": reads}


def both(arguments: list[str] | str) -> list[list[str]]:
    """Return a command for text, and its twin for JSON where it has one."""
    arguments = arguments.split() if isinstance(arguments, str) else arguments
    json_arguments = NO_JSON.get(arguments[0], ["--json"])
    is_plain = json_arguments is None or {"--json", "--style", "--help"} & set(arguments)
    return [arguments] if is_plain or json_arguments is None else [arguments, [*arguments, *json_arguments]]


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
    """Every setting of the reference suite by ``evaluate``, and its mechanism as epsilon, delta and sigma."""
    seen = set()
    for setting in settings():
        yield row(f"evaluate {setting}", api("evaluate", setting.quantity, **dict(setting.parameters)))
        if not setting.has_every_entry_point:
            continue
        given = without_target(setting)
        mechanism = given.pop("mechanism")
        for query, target in TARGETS.items():
            if query == "sigma" and given.pop("noise_multiplier", None) is None:
                continue
            arguments = [query, mechanism, *options({**given, **target})]
            arguments += ["--allow-refuted"] * (setting.bound in REFUTED)
            if (key := " ".join(arguments)) not in seen:
                seen.add(key)
                yield row(key, [*arguments, "--json"])


def by_harness(count: int = 1500) -> Iterator[Row]:
    """Random queries, one for each seed, except searches in bounds that take minutes; one in ten also as text."""
    for seed in range(count):
        requested = query_of_seed(seed)
        if requested.query in SEARCHES and requested.bound in SLOW_BOUNDS:
            continue
        arguments = shlex.split(requested.command())[1:]
        yield row(f"seed {seed}", *(both(arguments)[1:] if seed % 10 else both(arguments)))


def by_pages() -> Iterator[Row]:
    """Every block of commands of a page, those of one page in one folder."""
    for page in PAGES:
        blocks = re.findall(r"```\n(\$ .*?)```", (ROOT / page).read_text(), re.DOTALL)
        lines = [
            part.replace("\\\n", " ").splitlines()[0] for b in blocks for part in re.split(r"^\$ ", b, flags=re.M)[1:]
        ]
        arguments = [shlex.split(line.split(";")[0]) for line in lines]
        shown = [w[1:] for w in arguments if w[0] == "privproj" and w[1] not in ("train", "audit")]
        yield row(page, *(call for w in shown for call in both(w)), files=examples())


def examples() -> dict[str, str]:
    """Return the examples that are data files."""
    kept = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".toml", ".jsonl"))
    return {f"examples/{path.name}": path.read_text() for path in kept}


def by_formats() -> Iterator[Row]:
    """Every file format that is read or written, and every command that other groups leave out."""
    run, book, z = "run examples/run.toml", "examples/ledger.jsonl", "gaussian --noise-multiplier 2"
    for command_line in (
        f"{run} --delta 1e-5 -o again.json",
        f"{run} --epsilon 2",
        f"{run} --calibrate --epsilon 2 --delta 1e-6 -o again.toml",
        f"{run} --gdp",
        "run examples/events.toml --delta 1e-5",
        "check examples/bounds.toml --junit junit.xml",
        "check examples/bounds.toml --update",
        f"ledger {book}",
        f"ledger {book} --delta 1e-7",
        f"verify {book}",
        "remaining examples/run.toml --epsilon 40 --delta 1e-5",
        "remaining examples/run.toml --epsilon 40 --delta 1e-5 --adaptive",
        "dp-sft --epsilon 4 --delta 1e-5 --sampling-rate 0.01 --subspace-steps 100 --steps 100 -o phases.json",
        f"select {z} --trials 10 --delta 1e-5",
        f"compare {z} --delta 1e-5",
        "compare m2 --dim 2048 --rank 16 --noise-multiplier 0.5 --delta 1e-5",
        "compare wishart --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
        "choose --layer 1024x16x24 --batch-size 512 --dataset-size 120000 --epochs 5 --epsilon 2 --delta 1e-6",
        "alignment mean --norm-bound 1 --norm-floor 0.1 --records 5000",
        "alignment preprocess --misalignment 0.8 --gamma 3 --dim 10000 --beta 1e-6",
        "alignment descent --dim 100 --rank 10000 --failure 1e-3",
        "lora-noise --rank 16 --entry 0.1 --row-norm 1 --initialization uniform --variance 0.0026",
        "sigma m2 --dim 2048 --rank 16 --advantage 0.1",
        "sigma gaussian --steps 2000 --sampling-rate 0.01 --tpr 0.02 --fpr 0.01",
        f"epsilon {z} --log10-delta -1000",
        f"epsilon {z} --delta 1e-5 --sampling shuffle",
        f"epsilon {z} --delta 1e-5 --clip 2",
        f"epsilon {z} --delta 2",
        f"epsilon {z} --delta 1e-5 --no-such-option 1",
        "epsilon wishart --dim 64 --rank 4 --misalignment 1e-4 --sampling-rate 0.01 --steps 5 --delta 1e-5",
        "epsilon r1smg --dim 100 --noise-multiplier 1.64 --delta 1e-5",
        "sigma m2 --dim 64 --rank 4 --epsilon 1e-12 --delta 1e-300",
        "rank m2 --dim 64 --noise-multiplier 0.01 --epsilon 0.1 --delta 1e-9",
        "explain",
        "bounds",
    ):
        yield row(command_line, *both(command_line), files=examples())
    for style in ("csv", "jsonl", "parquet"):
        yield row(f"sweep to {style}", f"sweep examples/grid.toml -o table.{style} --json", files=examples())
    for kind in ("delta", "trade-off", "gdp"):
        requested = f"curve m2 --dim 2048 --rank 16 --noise-multiplier 0.5 --what {kind} --style"
        yield row(f"curve {kind}", *(f"{requested} {style}" for style in ("table", "csv", "json")))
    yield row("curve of all bounds to a file and a picture", f"curve {z} --bound all -o table.txt --plot curve.svg")
    for style in ("txt", "md", "html"):
        calls = [f"report ledger {book} -o s.{style}", f"verify s.{style} --json", f"verify s.{style} {book} --json"]
        calls += [f"report run examples/run.toml --delta 1e-5 -o r.{style}", f"verify r.{style} --json"]
        calls += [f"report {z} --delta 1e-5 -o m.{style}", f"verify m.{style} --json"]
        yield row(f"statement {style}", *calls, files=examples())
    yield row("schemas", {"resource": "schema.json"}, {"resource": "run_schema.json"})


def by_run_files(count: int = 200) -> Iterator[Row]:
    """Settings as run files of one phase, and of two phases."""
    drawn = [s for s in settings() if s.has_every_entry_point and s.bound not in REFUTED]
    random.Random(1).shuffle(drawn)
    for i, setting in enumerate(drawn[:count]):
        other = {"name": "other", "mechanism": "gaussian", "noise_multiplier": 30}
        data = {"phase": [without_target(setting), other][: 1 + i % 4 // 3]}
        yield row(f"run {setting}", "run run.json --delta 1e-5 --json", files={"run.json": json.dumps(data)})


def by_sweeps(count: int = 60) -> Iterator[Row]:
    """Grids of 72 points, which are evaluated as arrays, and of a few, which are not."""
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
        grid = {"grid.json": json.dumps(data)}
        yield row(f"sweep {i} {name} {query}", "sweep grid.json -o table.csv --json", files=grid)


def by_certificates(count: int = 40) -> Iterator[Row]:
    """Certificates and their verification."""
    arguments = [
        "gaussian --noise-multiplier {z}",
        "laplace --noise-multiplier {z}",
        "sketch-public --rank 8 --noise-multiplier {z}",
        "m2 --dim 64 --rank 4 --noise-multiplier {z}",
        "gaussian --noise-multiplier {z} --sampling-rate .05 --steps 20",
    ]
    for i in range(count):
        requested = arguments[i % len(arguments)].format(z=round(0.6 + 0.15 * i, 2)).split()
        target = (("epsilon", "--delta", f"1e-{4 + i % 5}"), ("delta", "--epsilon", "1"))[i // 5 % 2]
        prove = [target[0], *requested, *target[1:], "--certificate", "proof.json", "--json"]
        yield row(f"certificate {i} {' '.join(requested)}", prove, *both("verify proof.json"))


def by_ledgers() -> Iterator[Row]:
    """A ledger that ends at each of its lines: its report and its verification."""
    lines = (ROOT / "examples/ledger.jsonl").read_text().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        files = {"book": "".join(lines[:count])}
        yield row(f"ledger of {count} lines", *both("ledger book"), *both("verify book"), files=files)


def by_training() -> Iterator[Row]:
    """Six steps of every algorithm under every sampler: weights, ledger and report of a repeatable run."""
    for algorithm in ALGORITHMS:
        for sampler in SAMPLERS:
            # A run of 6 steps has 3 in the first stage of dp-sft, one for each direction at the least.
            rank = () if algorithm == "dp-sgd" else ("--rank", "2" if algorithm == "dp-sft" else "4")
            arguments = [
                "train",
                "--data",
                "digits",
                "--mechanism",
                algorithm,
                *rank,
                "--noise-multiplier",
                "2",
                *sampler,
            ]
            arguments += [
                "--steps",
                "6",
                "--insecure-seed",
                "0",
                "--device",
                "cpu",
                "--hidden",
                "8",
                "-o",
                "out",
                "--json",
            ]
            after = (*both("ledger out/ledger.jsonl --delta 1e-5"), *both("verify out/ledger.jsonl --delta 1e-5"))
            yield row(f"train {algorithm} {sampler[1]}", arguments, *after)
    text = "train --data digits --mechanism dp-sgd --noise-multiplier 2 --steps 6 --insecure-seed 0 --device cpu -o out"
    yield row("train with a report in text", text)


def by_arrays() -> Iterator[Row]:
    """The array API: settings that differ in numbers alone as one call, and broadcasting."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for setting in settings():
        if setting.has_every_entry_point and setting.bound not in REFUTED:
            given = without_target(setting)
            same = {n: v for n, v in given.items() if isinstance(v, str) or n in ("steps", "sampling_rate")}
            key = (tuple(sorted(same.items())), tuple(sorted(set(given) - set(same))))
            groups.setdefault(key, []).append({n: v for n, v in given.items() if n not in same})
    read = ("to_dict", "log10_delta")
    for (same, names), points in groups.items():
        given, targets = dict(same), {"delta": [1e-5], "epsilon": [1.0]}
        mechanism, bound = given.pop("mechanism"), given.pop("bound")
        label = f"{mechanism} {bound} {' '.join(f'{n}={v}' for n, v in given.items())} {' '.join(names)}"
        columns = {name: [point[name] for point in points] for name in names}
        for call, target in (("epsilons", "delta"), ("deltas", "epsilon")):
            keywords = {"bound": bound, **given, **columns, target: targets[target]}
            yield row(f"{call} {label}", api(call, mechanism, read=read, **keywords))
        if "noise_multiplier" in columns and bound not in SLOW_BOUNDS and "steps" not in given:
            del columns["noise_multiplier"]
            yield row(
                f"sigmas {label}", api("sigmas", mechanism, read=read, bound=bound, **given, **columns, **targets)
            )
    wide = {"dim": 2048, "rank": [4, 16], "noise_multiplier": [[0.5], [1.0]]}
    yield row("epsilons broadcast", api("epsilons", "m2", delta=[1e-5, 1e-7], **wide, read=("value", *read)))
    yield row("epsilons of log10 deltas", api("epsilons", "m2", log10_delta=[-5, -400], dim=64, rank=4,
                                              noise_multiplier=1.0, read=read))  # fmt: skip
    yield row(
        "epsilons of a mechanism", api("epsilons", api("Gaussian", noise_multiplier=[1.0, 2.0]), delta=1e-5, read=read)
    )
    yield row("epsilons of a wrong row", api("epsilons", "gaussian", noise_multiplier=[1.0, -2.0], delta=1e-5))
    yield row("epsilons of a rejected run", api("epsilons", "wishart", dim=64, rank=4, misalignment=[1e-4, 1e-5],
                                               sampling_rate=0.1, delta=1e-5))  # fmt: skip


def by_python() -> Iterator[Row]:
    """The public names of Python that the command line or the array API do not cover."""
    gaussian, m2 = api("Gaussian", noise_multiplier=2.0), api("M2", dim=2048, rank=16, noise_multiplier=0.5)
    quiet, layers = api("M2", dim=2048, rank=16), [api("Layer", dim=64, rank=4, count=2), api("Layer", dim=32, rank=2)]
    run, target = {"steps": 500, "sampling_rate": 0.01}, {"epsilon": 2.0, "delta": 1e-5}
    spend = [["spend", {"release": gaussian, **run}], ["fits", {"release": m2, **run}], ["epsilon", {"delta": 1e-5}],
             ["most_steps", {"release": m2, "sampling_rate": 0.01}], ["spent", {}], ["left", {}]]  # fmt: skip
    steps = [["step", {"mechanism": gaussian, **run}], ["step", {"mechanism": m2, **run}], ["epsilon", {"delta": 1e-5}],
             ["delta", {"epsilon": 1.0}], ["remaining", target], ["save", {"path": "run.json"}]]  # fmt: skip
    ends = ("as_dict", "value", "lower", "upper", "side", "status", "outcome", "lower_bound")
    calls = (
        api("epsilon", gaussian, delta=1e-5, **run, read=ends),
        api("epsilon", m2, delta=1e-5, **run, read=ends),
        api("delta", gaussian, epsilon=1.0, **run, read=ends),
        api("epsilon", api("M2", layers=layers, noise_multiplier=0.5), delta=1e-5, read=ends),
        api("sigma", quiet, **target, **run, read=ends),
        api("steps", m2, **target, sampling_rate=0.01, read=ends),
        api("rate", m2, **target, steps=500, read=ends),
        api("rank", api("M2", dim=2048, noise_multiplier=0.5), **target),
        api("misalignment", api("Wishart", dim=1000, rank=16), **target, read=ends),
        api("compare", m2, delta=1e-5),
        api("choose", layers=layers, **target, **run),
        api("update_utility", m2, **target, **run),
        api("mixing_plan", rank=100, **target),
        api("gdp_mu", m2, read=ends),
        api("select", gaussian, trials=10, delta=1e-5),
        api("convert", gaussian, "mu", **run, read=("value", "side")),
        api("convert", gaussian, "rho", steps=8, read=("value", "side")),
        api("convert", gaussian, "renyi", at=[2, 4, 16], steps=8, read=("value", "side")),
        api("convert", m2, "trade-off", at=[0.01, 0.1, 0.5], **run, read=("value", "side")),
        api("Filter", epsilon=3.0, delta=1e-5, order=8, read=spend),
        api("Accountant", read=steps),
        api("records.certify", api("epsilon", gaussian, delta=1e-5), read=("record",)),
        api("evaluate", "gaussian.no-such-bound.delta", noise_multiplier=1, epsilon=1),
        api("epsilon", gaussian, delta=-1.0),
        api("epsilon", api("Wishart", dim=64, rank=4, misalignment=1e-4), delta=1e-5, sampling_rate=0.01),
    )
    for i, call in enumerate(calls):
        yield row(f"python {i}", call)


GROUPS = {
    "settings": by_settings,
    "harness": by_harness,
    "pages": by_pages,
    "formats": by_formats,
    "run files": by_run_files,
    "sweeps": by_sweeps,
    "certificates": by_certificates,
    "ledgers": by_ledgers,
    "arrays": by_arrays,
    "python": by_python,
    "training": by_training,
}


def rows() -> list[Row]:
    """Return the rows of all groups, whose names are unique."""
    found = [{"group": group, **one} for group, make in GROUPS.items() for one in make()]
    assert len({one["name"] for one in found}) == len(found), "two rows of one name"
    return found
