"""Valid run, regression and grid files, and their defects: a key removed, repeated or of a wrong type, or unknown.

The law: a defect changes the result or is an error, and the error names the key. A repeated, mistyped or unknown key is
always an error. A removed key may leave the number unchanged only if it has its default value (:data:`DEFAULTS`) or if
no bound depends on it (:data:`NO_EFFECT`).
"""

import csv
import io
import json
import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from tests.differential.command_line_rules import Seen, call
from tests.differential.command_lines import Case
from tests.differential.features import feature_items
from tests.differential.report import Check

Pairs = list[tuple[str, Any]]  # a table whose keys may repeat

DEFAULTS = {
    "query": "epsilon", "steps": 1, "sampling_rate": 1, "sampling": "poisson", "epochs": 1, "group_size": 1,
    "clipping": "joint", "planned": False, "fixed_projection": False, "enforced": False,
    "norm_ratio": 1.0, "shift_in_span": 0.0, "changed_columns": 1, "layer_count": 1, "eigen_floor": 0.0,
    "split": "optimal",
}  # fmt: skip

# Keys without an effect on the number of some query, and the reason.
NO_EFFECT = {
    "name": "a label",
    "planned": "only the command remaining reads it, which has its own test",
    "columns": "only bounds for a difference rank read it",
    "change_rank": "only bounds for a difference rank read it",
    "discretization": "grid of a composition; closed forms need none",
    "fixed_projection": "bounds that support it do not depend on it",
    "enforced": "an assumption becomes a requirement, for the same number",
    "sketch-public.dim": "no bound depends on it",
    "m1.dim": "bounds at a known projection depend on the rank alone",
    "gaussian.rank": "the Gaussian bound of m2 holds for every rank",
    "relation": "may be the default of the mechanism",
    "sampling": "fixed-size batches are the default for replace",
    "bound": "may be the default bound, or have the same value",
    "partition.batch_size": "each record is used once per epoch",
    "partition.dataset_size": "each record is used once per epoch",
    "shuffle.batches": "an epoch is accounted for as one release",
}
DESCRIPTIVE = ("relation", "sampling", "bound", "query", "mechanism")  # the description may change, not the number
UNSAMPLED = ("wishart", "sketch", "m1", *(entry["mechanism"] for entry in feature_items("ENTRIES")))
REQUEST = {"run": ("--delta", "1e-5", "--json"), "check": (), "sweep": ("-o", "out.csv")}


@dataclass(frozen=True)
class File:
    """A file of a kind (run, check or sweep) in a language (toml or json)."""

    kind: str
    language: str
    top: Pairs
    entries: list[Pairs] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the content of the file, repeated keys included."""
        write = as_json if self.language == "json" else as_toml
        return write(self.top, {"run": "phase", "check": "bound", "sweep": "grid"}[self.kind], self.entries, self.kind)

    @property
    def case(self) -> Case:
        """Return the command line that reads the file."""
        name = f"in.{self.language}"
        return Case((self.kind, name, *REQUEST[self.kind]), {name: self.text.encode()})

    @property
    def result(self) -> tuple[Seen, Any]:
        """Return the outcome of the call, and its ``(numbers, description)`` unless it is an error."""
        seen = call(self.case)
        if seen.code not in (0, 1, 4):
            return seen, None
        return seen, {"run": of_run, "check": of_check, "sweep": of_sweep}[self.kind](self, seen)

    def tables(self) -> list[int]:
        """Return the indices of all tables; -1 is the top level."""
        return [-1, *range(len(self.entries))]

    def table(self, place: int) -> Pairs:
        """Return the table of an index."""
        return self.top if place < 0 else self.entries[place]

    def changed(self, place: int, pairs: Pairs) -> "File":
        """Return the file with another table at an index."""
        if place < 0:
            return replace(self, top=pairs)
        return replace(self, entries=[pairs if i == place else old for i, old in enumerate(self.entries)])


def of_run(file: File, seen: Seen) -> Any:
    """Return the value of a run and its description."""
    shown = json.loads(seen.out)
    return shown["value"], (shown["bound"], shown["run"]["relation"], shown["data_assumptions"], shown["numerics"])


def of_check(file: File, seen: Seen) -> Any:
    """Return the lines of ``check`` without the names of entries, and the exit code."""
    return [line.split(": ", 1)[-1] for line in seen.out.splitlines()[:-1]], seen.code


def of_sweep(file: File, seen: Seen) -> Any:
    """Return the values of a sweep, and the other columns."""
    rows = list(csv.DictReader(io.StringIO(seen.left["out.csv"].decode())))
    return [row["value"] for row in rows], [(row["side"], row["bound"], row["status"], row["note"]) for row in rows]


# --- writing --------------------------------------------------------------------------------------


def literal(value: Any) -> str:
    """Return a value as TOML and JSON."""
    return json.dumps(value)


def as_toml(top: Pairs, table: str, entries: list[Pairs], kind: str) -> str:
    head = f"[{table}]" if kind == "sweep" else f"[[{table}]]"
    lines = [f"{key} = {literal(value)}" for key, value in top]
    for pairs in entries:
        lines += [head, *(f"{key} = {literal(value)}" for key, value in pairs)]
    return "\n".join(lines) + "\n"


def as_json(top: Pairs, table: str, entries: list[Pairs], kind: str) -> str:
    objects = ["{" + ", ".join(f'"{key}": {literal(value)}' for key, value in pairs) + "}" for pairs in entries]
    inner = objects[0] if kind == "sweep" else "[" + ", ".join(objects) + "]"
    return "{" + ", ".join([*(f'"{key}": {literal(value)}' for key, value in top), f'"{table}": {inner}']) + "}"


# --- valid files ----------------------------------------------------------------------------------


def mechanism(draw: random.Random, single: bool) -> dict[str, Any]:
    """Draw a mechanism with parameters; ``single`` includes bounds that cannot be composed."""
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
            *feature_items("ENTRIES"),
            {"mechanism": "sketch", "rank": 4, "gamma": 400.0, "bound": draw.choice(["rdp-best", "exact-rank1"])},
            {"mechanism": "sketch", "rank": 4, "frobenius_bound": 2.0, "sensitivity": 0.25, "sketch_sigma": 0.4,
             "noise_sigma": 9.0, "eigen_floor": 0.5, "enforced": draw.choice([True, False])},
            {"mechanism": "m1", "dim": 9, "rank": 40, "noise_multiplier": 9.0, "bound": "operator-norm", "split": 0.3},
        ]  # fmt: skip
    return draw.choice(found)


def sampled(draw: random.Random, found: dict[str, Any]) -> dict[str, Any]:
    """Draw the number of steps and the sampling."""
    if found["mechanism"] in UNSAMPLED or found.get("bound") in ("beta-tail", "good-event"):
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
    """Draw a file that is usually valid."""
    language = draw.choice(["toml", "json"])
    return {"run": run_file, "check": check_file, "sweep": sweep_file}[draw.choice(["run", "check", "sweep"])](
        draw, language
    )


def run_file(draw: random.Random, language: str) -> File:
    """Draw a run file of one to three phases."""
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


def regression_entry(draw: random.Random) -> dict[str, Any]:
    """Draw mechanism, run, query and target."""
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
        found["noise_multiplier"] = 0.3  # small enough for a rank below the dimension
    elif query != "delta":
        query = "epsilon"
    target = {"epsilon": {"delta": 1e-5}, "delta": {"epsilon": 1.5}}.get(query, {"epsilon": 3, "delta": 1e-5})
    if "delta" in target and draw.random() < 0.1:
        target["log10_delta"] = math.log10(target.pop("delta")) - 0.5
    return {"query": query, **found, **target}


def check_file(draw: random.Random, language: str) -> File:
    """Draw a regression file whose ``expect`` holds only because of ``rtol``, and whose ``at_most`` does not hold."""
    from privproj.errors import PrivprojError
    from privproj.io.regression import entries_from

    entries = []
    for i in range(draw.choice([1, 1, 2])):
        given = {"name": f"entry {i}", **regression_entry(draw)}
        if i == 0 and draw.random() < 0.5:
            del given["name"]
        try:
            value = float(entries_from({"bound": [{**given, "at_most": 0}]})[0].ask().value or math.inf)
        except PrivprojError:
            value = math.inf
        checked = {"expect": value * 1.0004, "rtol": 1e-3} if math.isfinite(value) else {"at_most": 1.0}
        checked |= {"at_most": value * 0.5} if draw.random() < 0.3 and math.isfinite(value) else {}
        entries.append(draw.sample(list({**given, **checked}.items()), len({**given, **checked})))
    return File("check", language, [], entries)


def sweep_file(draw: random.Random, language: str) -> File:
    """Draw a grid file: fixed keys and one or two axes."""
    given = regression_entry(draw)
    numbers = [key for key, value in given.items() if isinstance(value, float | int) and not isinstance(value, bool)]
    axes = []
    for key in draw.sample(numbers, min(len(numbers), draw.choice([1, 2]))):
        value = given.pop(key)
        axes.append((key, [value, 2 * value if value != 1 else 3] if key not in ("split",) else [value, 0.4]))
    return File("sweep", language, list(given.items()), [axes])


# --- defects --------------------------------------------------------------------------------------


def others(value: Any, language: str) -> list[Any]:
    """Return the value in types that its key does not allow."""
    null = [None] if language == "json" else []
    if isinstance(value, bool):
        return [str(value).lower(), int(value), [value], {}, *null]
    if isinstance(value, int | float):
        return [json.dumps(value), value == 1, [value], {}, *null]
    if isinstance(value, str):
        return [3, True, [value], {}, *null]
    return [3, False, {}, [[3]], [*value, 3], [], *null]


def defects(file: File) -> list[tuple[str, str, File]]:
    """Return every defect of a file as ``(kind, key, file)``."""
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
    """Return a key twice, with the same and another value, in one and two spellings."""
    other = [9] if grid else not value if isinstance(value, bool) else "x" if isinstance(value, str) else 9
    spellings = {key, key.replace("_", "-")}
    return [[(key, value), (name, new)] for name in sorted(spellings) for new in (value, other)]


def defective_files(most):
    """Return the strategy of valid files with up to ``most`` defects of each kind."""

    def draw_defects(draw):
        file = valid(draw)
        every = defects(file)
        kinds = [[case for case in every if case[0] == kind] for kind in ("removed", "doubled", "mistyped", "unknown")]
        return file, [case for cases in kinds for case in draw.sample(cases, min(len(cases), most))]

    # A real Random: smaller choices would draw mostly the first mechanism of each list.
    return st.randoms(use_true_random=True).map(draw_defects)


def check_defects(example: tuple[File, list[tuple[str, str, File]]]) -> Check:
    """Check every defect of a file; the flags count the outcomes, and a file without a number has none."""
    file, cases = example
    check = Check(file.kind, file.text)
    _, result = file.result
    if result is None or not all(map(definite, result[0] if isinstance(result[0], list) else result[:1])):
        check.flags.add("without a number")
        return check
    for kind, key, defective in cases:
        outcome = outcome_of_defect(file, result, kind, key, defective)
        if outcome in ("error", "changed", "no effect"):
            check.flags.add(f"{kind}: {outcome}")
        else:
            check.fail(kind, f"{key}: {outcome}\n{defective.text}")
    return check


def definite(value: Any) -> bool:
    """Return whether a number is away from the extremes, where different queries have equal values."""
    try:
        number = float(value.split(" ")[2] if " = " in str(value) else value)
    except (TypeError, ValueError):
        return False
    return 1e-200 < number < math.inf and number != 1.0


def outcome_of_defect(file: File, before: Any, kind: str, key: str, defective: File) -> str:
    """Return ``error``, ``changed`` or ``no effect`` where the law holds, or else a sentence."""
    seen, after = defective.result
    if after is None:
        named = f"in.{file.language}" in seen.err and (key in seen.err or key.replace("_", "-") in seen.err)
        clear = seen.err.startswith("error: ") and seen.err.count("\n") == 1 and seen.code in (2, 3, 5)
        return "error" if clear and (named or kind == "removed") else f"the error does not name its key: {seen.err}"
    if kind != "removed":
        return f"accepted with exit code {seen.code}: {seen.out[:200]}"
    if after[0] != before[0] or (key in DESCRIPTIVE and after != before):
        return "changed"
    return "no effect" if may_stay(file, key) else f"the same result: {after}"


def may_stay(file: File, key: str) -> bool:
    """Return whether a key has its default value or is in :data:`NO_EFFECT`."""
    tables = [dict(pairs) for pairs in [file.top, *file.entries]]
    given = [table[key] for table in tables if key in table]
    kinds = {str(table.get(name)) for table in tables for name in ("mechanism", "sampling", "bound")}
    if any(value == DEFAULTS.get(key) for value in given) or key in NO_EFFECT:
        return True
    return any(f"{kind}.{key}" in NO_EFFECT for kind in kinds)
