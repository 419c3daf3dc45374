"""Files whose keys are taken away, doubled or mistyped: the answer changes, or it is an error that names the key."""

import csv
import io
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz.laws import Seen, call
from tests.fuzz.strategies import Case

Pairs = list[tuple[str, Any]]
"""A table whose keys may repeat."""

DEFAULTS = {
    "query": "epsilon", "steps": 1, "sampling_rate": 1, "sampling": "poisson", "epochs": 1, "group_size": 1,
    "clipping": "joint", "planned": False, "fixed_projection": False, "enforced": False,
    "norm_ratio": 1.0, "shift_in_span": 0.0, "changed_columns": 1, "layer_count": 1, "eigen_floor": 0.0,
    "split": "optimal",
}  # fmt: skip
"""A key with its default value may be left out: nothing is said by it."""

KEPT = {
    "name": "a label",
    "planned": "run is about the whole plan; remaining is what reads it, and has a test of its own",
    "columns": "a shape that only bounds on the rank of a change read",
    "change_rank": "a promise that only bounds on the rank of a change read",
    "discretization": "the grid of a composition; without effect where a closed form needs none",
    "fixed_projection": "refuses several releases where it matters; bounds that allow it do not depend on it",
    "enforced": "turns a promise into a fact, the number stays",
    "sketch-public.dim": "plays no role (as its help says)",
    "m1.dim": "plays no role in bounds at a known projection, which depend on the rank",
    "gaussian.rank": "m2 by the Gaussian bound, which holds for every rank",
    "relation": "the default relation of the mechanism may be the one that is given",
    "sampling": "fixed sampling is the default where replace is given",
    "bound": "the default bound may be the one that is given, or sharper ones agree",
    "partition.batch_size": "each record is used once per epoch, whatever the batches",
    "partition.dataset_size": "each record is used once per epoch, whatever the batches",
    "shuffle.batches": "an epoch costs as much as one release, whatever the batches",
}
"""Keys that may be taken away without changing the number, and why; doubling and mistyping them is an error too."""

WORDS = ("relation", "sampling", "bound", "query", "mechanism")
"""Keys that say what the number is about: what is said of the number may change instead of the number."""
REQUEST = {"run": ("--delta", "1e-5", "--json"), "check": (), "sweep": ("-o", "out.csv")}


@dataclass(frozen=True)
class File:
    """A file of a kind in a language; ``answer`` is what it answers as it is."""

    kind: str
    language: str
    top: Pairs
    entries: list[Pairs] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The file's content, repeated keys and all."""
        write = as_json if self.language == "json" else as_toml
        return write(self.top, {"run": "phase", "check": "bound", "sweep": "grid"}[self.kind], self.entries, self.kind)

    @property
    def case(self) -> Case:
        """The call that reads it."""
        name = f"in.{self.language}"
        return Case((self.kind, name, *REQUEST[self.kind]), {name: self.text.encode()})

    @property
    def answer(self) -> tuple[Seen, Any]:
        """What the call did, and what it answered as ``(numbers, what is said of them)``."""
        seen = call(self.case)
        if seen.code not in (0, 1, 4):
            return seen, None
        return seen, {"run": of_run, "check": of_check, "sweep": of_sweep}[self.kind](self, seen)

    def tables(self) -> list[int]:
        """The places of tables: -1 is the top."""
        return [-1, *range(len(self.entries))]

    def table(self, place: int) -> Pairs:
        """The table at a place."""
        return self.top if place < 0 else self.entries[place]

    def changed(self, place: int, pairs: Pairs) -> "File":
        """With another table at a place."""
        if place < 0:
            return replace(self, top=pairs)
        return replace(self, entries=[pairs if i == place else old for i, old in enumerate(self.entries)])


def of_run(file: File, seen: Seen) -> Any:
    """The joint number."""
    shown = json.loads(seen.out)
    return shown["value"], (shown["bound"], shown["run"]["relation"], shown["promises"], shown["numerics"])


def of_check(file: File, seen: Seen) -> Any:
    """The lines without the names of entries."""
    return [line.split(": ", 1)[-1] for line in seen.out.splitlines()[:-1]], seen.code


def of_sweep(file: File, seen: Seen) -> Any:
    """The numbers of the table, and its other columns."""
    rows = list(csv.DictReader(io.StringIO(seen.left["out.csv"].decode())))
    return [row["value"] for row in rows], [(row["side"], row["bound"], row["status"], row["note"]) for row in rows]


# --- writing --------------------------------------------------------------------------------------


def literal(value: Any) -> str:
    """A value of TOML and JSON."""
    return json.dumps(value)


def as_toml(top: Pairs, table: str, entries: list[Pairs], kind: str) -> str:
    """TOML."""
    head = f"[{table}]" if kind == "sweep" else f"[[{table}]]"
    lines = [f"{key} = {literal(value)}" for key, value in top]
    for pairs in entries:
        lines += [head, *(f"{key} = {literal(value)}" for key, value in pairs)]
    return "\n".join(lines) + "\n"


def as_json(top: Pairs, table: str, entries: list[Pairs], kind: str) -> str:
    """JSON."""
    objects = ["{" + ", ".join(f'"{key}": {literal(value)}' for key, value in pairs) + "}" for pairs in entries]
    inner = objects[0] if kind == "sweep" else "[" + ", ".join(objects) + "]"
    return "{" + ", ".join([*(f'"{key}": {literal(value)}' for key, value in top), f'"{table}": {inner}']) + "}"


# --- valid files ----------------------------------------------------------------------------------


def mechanism(draw: random.Random, single: bool) -> dict[str, Any]:
    """A mechanism with parameters; ``single`` for one release, with bounds that are no profiles among them."""
    z = draw.choice([0.7, 1.5, 2, 4.0])
    found = [
        {"mechanism": "gaussian", "noise_multiplier": z},
        {"mechanism": draw.choice(["dp-sgd", "prism"]), "noise_multiplier": z},
        {"mechanism": "laplace", "noise_multiplier": z},
        {"mechanism": "gaussian", "noise_multiplier": z, "bound": draw.choice(["two-sided", "analytic"])},
        {"mechanism": "m2", "dim": 64, "rank": draw.choice([2, 4]), "noise_multiplier": z / 4},
        {"mechanism": "m2", "layer": draw.choice([["64x4x2"], ["64x4", "32x8"]]), "noise_multiplier": z},
        {"mechanism": "m2", "layer": ["64x4@0.25", "32x4@0.75"], "clipping": "per-layer", "noise_multiplier": z},
        {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": z, "fixed_projection": True, "bound": "gaussian"},
        {"mechanism": "m2", "dim": 64, "rank": 4, "columns": 8, "change_rank": 2, "noise_multiplier": z},
        {"mechanism": "sketch-public", "rank": 4, "dim": 9, "noise_multiplier": 4 * z},
    ]
    if single:
        found += [
            {"mechanism": "m2", "dim": 64, "rank": 4, "columns": 8, "bound": "beta-tail", "noise_multiplier": z},
            {"mechanism": "m2", "dim": 64, "rank": 4, "change_rank": 2, "bound": "good-event", "noise_multiplier": 9.0,
             "split": draw.choice(["even", "optimal", 0.3])},
            {"mechanism": "wishart", "dim": 50, "rank": 9, "misalignment": 1e-5, "bound": "quantile", "split": 0.25},
            {"mechanism": "wishart", "dim": 50, "rank": 9, "alignment": 0.9999, "bound": "early"},
            {"mechanism": "mixing", "rank": 4, "gamma": 60.0, "eigen_noise": 9.0},
            {"mechanism": "sketch", "rank": 4, "gamma": 400.0, "bound": draw.choice(["rdp-best", "exact-rank1"])},
            {"mechanism": "sketch", "rank": 4, "frobenius_bound": 2.0, "sensitivity": 0.25, "sketch_sigma": 0.4,
             "noise_sigma": 9.0, "eigen_floor": 0.5, "enforced": draw.choice([True, False])},
            {"mechanism": "m1", "dim": 9, "rank": 40, "noise_multiplier": 9.0, "bound": "operator-norm", "split": 0.3},
        ]  # fmt: skip
    return draw.choice(found)


def sampled(draw: random.Random, found: dict[str, Any]) -> dict[str, Any]:
    """How often it is released, and how batches are drawn."""
    if found["mechanism"] in ("wishart", "sketch", "mixing", "m1") or found.get("bound") in ("beta-tail", "good-event"):
        return {}
    sizes = {"batch_size": 10, "dataset_size": draw.choice([40, 200])}
    ways = [
        {}, {"steps": draw.choice([1, 2, 3])}, {**sizes}, {**sizes, "epochs": draw.choice([0.3, 1, 2])},
        {"steps": 5, **sizes}, {"sampling_rate": 0.05, "steps": 3}, {"sampling_rate": 0.2},
        {"sampling_rate": 0.2, "sampling": "poisson"}, {**sizes, "sampling": "partition", "epochs": 3},
        {"sampling_rate": 0.1, "steps": 2, "sampling": "fixed"}, {"sampling": "shuffle", "batches": 5, "epochs": 2},
        {**sizes, "sampling": "balls-in-bins"}, {"sampling": "balls-in-bins", "batches": 6, "batches_per_record": 2},
    ]  # fmt: skip
    run = draw.choice(ways)
    if run.get("sampling") is None and draw.random() < 0.3:
        run["relation"] = draw.choice(["add-remove", "zero-out"])
    if run.get("sampling") in (None, "poisson") and "relation" not in run and draw.random() < 0.2:
        run["group_size"] = 2
    if draw.random() < 0.2:
        run["discretization"] = 1e-3
    return run


def valid(draw: random.Random) -> File:
    """A file that is meant to be valid; some are refused, which their answer says."""
    language = draw.choice(["toml", "json"])
    return {"run": run_file, "check": check_file, "sweep": sweep_file}[draw.choice(["run", "check", "sweep"])](
        draw, language
    )


def run_file(draw: random.Random, language: str) -> File:
    """One to three phases."""
    top, entries = {}, []
    group = 2 if draw.random() < 0.15 else None
    for i in range(draw.choice([1, 1, 2, 3])):
        found = mechanism(draw, False)
        run = sampled(draw, found)
        top |= {key: run.pop(key) for key in ("discretization", "relation") if key in run}
        run |= {} if group is None else {"group_size": group}
        extra = {"name": f"stage {i}"} if draw.random() < 0.3 else {}
        extra |= {"planned": True} if draw.random() < 0.4 else {}
        entries.append(draw.sample(list({**found, **run, **extra}.items()), len({**found, **run, **extra})))
    return File("run", language, list(top.items()), entries)


def question(draw: random.Random) -> dict[str, Any]:
    """Mechanism, run, query and target."""
    found = mechanism(draw, draw.random() < 0.5)
    found |= sampled(draw, found)
    query = draw.choice(["epsilon", "epsilon", "epsilon", "delta", "sigma", "steps", "rate", "rank"])
    if query == "sigma" and "noise_multiplier" in found and "split" not in found:
        del found["noise_multiplier"]
    elif query == "steps" and not {"steps", "epochs", "split"} & set(found) and found["mechanism"] == "gaussian":
        found["noise_multiplier"] = 9.0
    elif query == "rate" and found["mechanism"] == "gaussian":
        found = {key: found[key] for key in ("mechanism", "steps", "relation") if key in found}
        found["noise_multiplier"] = 0.7
    elif query == "rank" and "dim" in found and found["mechanism"] == "m2":
        del found["rank"]
        found["noise_multiplier"] = 0.3  # so little that the answer is a rank below the dimension
    elif query != "delta":
        query = "epsilon"
    target = {"epsilon": {"delta": 1e-5}, "delta": {"epsilon": 1.5}}.get(query, {"epsilon": 3, "delta": 1e-5})
    if "delta" in target and draw.random() < 0.1:
        target["log10_delta"] = math.log10(target.pop("delta")) - 0.5
    return {"query": query, **found, **target}


def check_file(draw: random.Random, language: str) -> File:
    """One or two entries; what is expected holds within ``rtol`` only, and ``at_most`` does not hold beside it."""
    from privproj.errors import PrivprojError
    from privproj.io.regression import entries_from

    entries = []
    for i in range(draw.choice([1, 1, 2])):
        given = {"name": f"entry {i}", **question(draw)}
        if i == 0 and draw.random() < 0.5:
            del given["name"]
        try:
            value = float(entries_from({"bound": [{**given, "at_most": 0}]})[0].ask().value or math.inf)
        except PrivprojError:
            value = math.inf
        judged = {"expect": value * 1.0004, "rtol": 1e-3} if math.isfinite(value) else {"at_most": 1.0}
        judged |= {"at_most": value * 0.5} if draw.random() < 0.3 and math.isfinite(value) else {}
        entries.append(draw.sample(list({**given, **judged}.items()), len({**given, **judged})))
    return File("check", language, [], entries)


def sweep_file(draw: random.Random, language: str) -> File:
    """Fixed keys and one or two axes."""
    given = question(draw)
    numbers = [key for key, value in given.items() if isinstance(value, float | int) and not isinstance(value, bool)]
    axes = []
    for key in draw.sample(numbers, min(len(numbers), draw.choice([1, 2]))):
        value = given.pop(key)
        axes.append((key, [value, 2 * value if value != 1 else 3] if key not in ("split",) else [value, 0.4]))
    return File("sweep", language, list(given.items()), [axes])


# --- defects --------------------------------------------------------------------------------------


def others(value: Any, language: str) -> list[Any]:
    """The same value in other types; nothing that the type of the value allows."""
    null = [None] if language == "json" else []
    if isinstance(value, bool):
        return [str(value).lower(), int(value), [value], {}, *null]
    if isinstance(value, int | float):
        return [json.dumps(value), value == 1, [value], {}, *null]
    if isinstance(value, str):
        return [3, True, [value], {}, *null]
    return [3, False, {}, [[3]], [*value, 3], [], *null]


def defects(file: File) -> list[tuple[str, str, File]]:
    """Every way to take a key away, double or mistype it, as ``(way, key, file)``."""
    found = []
    for place in file.tables():
        pairs = file.table(place)
        grid = file.kind == "sweep" and place == 0
        for i, (key, value) in enumerate(pairs):
            before, behind = pairs[:i], pairs[i + 1 :]
            found.append(("removed", key, file.changed(place, before + behind)))
            put = again(key, value, grid)
            found += [("doubled", key, file.changed(place, before + new + behind)) for new in put]
            types = [[*value[:-1], other] for other in others(value[-1], file.language)] if grid else []
            types += [3, "3", {}, []] if grid else others(value, file.language)
            found += [("mistyped", key, file.changed(place, [*before, (key, t), *behind])) for t in types]
            if grid:
                found.append(("doubled", key, file.changed(-1, [*file.top, (key, value[0])])))
                twice = (key, [*value, value[0]])
                found.append(("doubled", key, file.changed(place, [*before, twice, *behind])))
        found.append(("unknown", "step", file.changed(place, [*pairs, ("step", 3)])))
    return found


def again(key: str, value: Any, grid: bool) -> list[Pairs]:
    """A key twice, with the same and with another value, in one spelling and in two."""
    other = [9] if grid else not value if isinstance(value, bool) else "x" if isinstance(value, str) else 9
    spellings = {key, key.replace("_", "-")}
    return [[(key, value), (name, new)] for name in sorted(spellings) for new in (value, other)]


@dataclass
class Count:
    """What became of the cases."""

    cases: Counter = field(default_factory=Counter)
    silent: list[tuple[str, str, File, str]] = field(default_factory=list)
    refused: int = 0


def tried(seed: int, cases: int, most: int) -> Count:
    """So many defects of valid files, up to ``most`` of each file; those that break the law are kept."""
    draw, count = random.Random(seed), Count()
    while sum(count.cases.values()) < cases:
        file = valid(draw)
        _, answer = file.answer
        if answer is None or not all(map(definite, answer[0] if isinstance(answer[0], list) else answer[:1])):
            count.refused += 1
            continue
        for way, key, broken in chosen(draw, defects(file), most):
            words = judged(file, answer, way, key, broken)
            holds = words in ("error", "changed", "kept")
            count.cases[f"{way}: {words if holds else 'SILENT'}"] += 1
            if not holds:
                count.silent.append((way, key, broken, words))
    return count


def definite(value: Any) -> bool:
    """True for a number away from the ends at which answers of different questions agree."""
    try:
        number = float(value.split(" ")[2] if " = " in str(value) else value)
    except (TypeError, ValueError):
        return False
    return 1e-200 < number < math.inf and number != 1.0


def chosen(draw: random.Random, found: list[tuple[str, str, File]], most: int) -> list[tuple[str, str, File]]:
    """Some of the defects, every way alike often."""
    ways = [[case for case in found if case[0] == way] for way in ("removed", "doubled", "mistyped", "unknown")]
    picked = [case for cases in ways for case in draw.sample(cases, min(len(cases), most))]
    return picked


def judged(file: File, before: Any, way: str, key: str, broken: File) -> str:
    """``error``, ``changed`` or ``kept`` where the law holds, else what is wrong."""
    seen, after = broken.answer
    if after is None:
        named = f"in.{file.language}" in seen.err and (key in seen.err or key.replace("_", "-") in seen.err)
        clear = seen.err.startswith("error: ") and seen.err.count("\n") == 1 and seen.code in (2, 3, 5)
        return "error" if clear and (named or way == "removed") else f"an error that does not name its key: {seen.err}"
    if way != "removed":
        return f"answered with code {seen.code}: {seen.out[:200]}"
    if after[0] != before[0] or (key in WORDS and after != before):
        return "changed"
    return "kept" if may_stay(file, key) else f"the same answer: {after}"


def may_stay(file: File, key: str) -> bool:
    """True for a key that is at its default or in :data:`KEPT`."""
    tables = [dict(pairs) for pairs in [file.top, *file.entries]]
    given = [table[key] for table in tables if key in table]
    kinds = {str(table.get(name)) for table in tables for name in ("mechanism", "sampling", "bound")}
    if any(value == DEFAULTS.get(key) for value in given) or key in KEPT:
        return True
    return any(f"{kind}.{key}" in KEPT for kind in kinds)
