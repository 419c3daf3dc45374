"""Random command lines, valid and hostile: calls of every command, intact and damaged files, raw bytes."""

import json
import shlex
from dataclasses import dataclass, field
from functools import cache

import click
from hypothesis import strategies as st
from privproj_cli.main import COMMANDS, command_named
from privproj_cli.options import Number
from privproj_cli.query import example_arguments

from privproj.mechanisms.registry import mechanism_named
from privproj.sampling import Sampling
from tests.differential.features import feature_items
from tests.differential.queries import BOUND_NAMES, MECHANISMS, quick_queries
from tests.unit.io.tampering import chained_text


@dataclass(frozen=True)
class Case:
    """A command line and the files in its folder."""

    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the command line and the contents of its files."""
        held = "".join(f"\n    {name}: {data!r}" for name, data in self.files.items())
        return "privproj " + shlex.join(self.arguments) + held


# Arguments in place of a number: overflow, underflow, other scripts, other bases, no number at all.
ABSURD = [
    "0", "-0.0", "0.0", "1e-400", "1e400", "nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "2.5", "1e15", "1e16",
    "", " ", " 1", "1 ", "1_0", "\u0661", "\uff11", "\u00b2", "0x10", "0b1", "1e5", "-1", "+1", "1.", ".5", "1,5",
    "1e", "e1", "--", "-", "None", "true", "1j", "1/2", "\u221e", "1\n2", "1\t", "\x1b[31m", "9" * 400, "9" * 5000,
    "0." + "0" * 400 + "1", "x" * 10000, "1e9", "1e12", "1e-12", "1e-300", "1e-15", "1e6", "0.9999999999999999",
    "4294967296", "9223372036854775808", "\udcff", "{}", "[]", "%s", "${HOME}", "nul\ud800",
]  # fmt: skip

# Sensible values by option.
SANE = {
    "dim": ["1", "2", "3", "8", "64", "1000", "2048", "1e5"],
    "rank": ["1", "2", "4", "16", "64", "300"],
    "columns": ["1", "2", "8", "512"],
    "changed_columns": ["1", "2", "5"],
    "noise_multiplier": ["1e-3", "0.1", "0.5", "1", "2", "20", "1e4"],
    "noise_sigma": ["1e-3", "1", "10"],
    "sketch_sigma": ["0.1", "1"],
    "delta": ["1e-5", "1e-3", "0.1", "0.5", "0.999", "1e-12", "1e-100", "1e-300"],
    "log10_delta": ["-1", "-5", "-50", "-1000", "-1e5", "-1e300", "0"],
    "epsilon": ["0", "1e-9", "1e-3", "0.5", "1", "8", "100", "1e5", "1e9"],
    "epsilon_max": ["1", "10", "1e9"],
    "misalignment": ["0", "1e-9", "8e-6", "0.01", "0.5", "1", "2"],
    "alignment": ["-1", "0", "0.5", "0.99", "0.999999", "1"],
    "residual_misalignment": ["1e-6", "0.1", "1"],
    "residual_norm": ["1", "0.5,0.6", "1e-3", "1,2"],
    "norm_ratio": ["1", "1.0001", "2"],
    "steps": ["1", "2", "3", "10", "1000"],
    "subspace_steps": ["1", "5", "100"],
    "sampling_rate": ["1", "0.5", "0.1", "0.01", "1e-6"],
    "group_size": ["1", "2", "5"],
    "discretization": ["1", "1e-2", "1e-3"],
    "split": ["even", "optimal", "0.3"],
    "batch_size": ["1", "64", "1000"],
    "dataset_size": ["1", "1000", "50000"],
    "epochs": ["0.1", "1", "3"],
    "batches": ["1", "2", "10", "1000"],
    "batches_per_record": ["1", "3"],
    "trials": ["1", "2.5", "10", "1000"],
    "shape": ["-0.5", "0", "0.5", "4"],
    "max_batch_size": ["1", "200"],
    "points": ["2", "5"],
    "gamma": ["0.1", "2", "1000", "1e9"],
    "eigenvalues": ["1", "2", "10"],
    "layer": ["768x16x24", "64x4", "8x8", "64x4x2@0.5", "8x8@0.5", "1x1", "4x8", "64x4x1e3", "8x8x0", "x", "2x1@"],
    "records": ["1", "5000"],
    "failure": ["1e-3", "0.5"],
    "beta": ["1e-6", "0.5"],
    "base": ["nowhere"],
    "from_peft": ["nowhere", "."],
}  # fmt: skip

QUANTITIES = ("epsilon", "delta", "sigma", "rank", "steps", "rate", "misalignment")
REQUESTED = (*QUANTITIES, "compare", "curve", "report", "select")
QUICK = ("epsilon", "delta", "sigma", "epsilon", "delta", "sigma", "rank", "steps")
DEAR = ("m1", "wishart", "wishart-matrix")  # mechanisms whose default bound is a slow integral or missing
LONELY = ("alignment", "lora-noise", "bounds")
NEEDED = {
    "epsilon": ["--delta 1e-5"], "delta": ["--epsilon 1"], "compare": ["--delta 1e-5"], "report": ["--delta 1e-5"],
    "curve": ["--points 3"], "select": ["--trials 5 --delta 1e-5"],
}  # fmt: skip
TARGET = ["--epsilon 1", "--delta 1e-5"]
BASES = {
    "dp-sft": "--epsilon 4 --delta 1e-5 --sampling-rate 0.1 --subspace-steps 3 --steps 4",
    "mean": "--norm-bound 1 --norm-floor 0.1 --records 5000",
    "preprocess": "--misalignment 0.8 --gamma 3 --dim 10000 --beta 1e-6",
    "descent": "--dim 100 --rank 10000 --failure 1e-3",
    "lora-noise": "--rank 16 --entry 0.1 --row-norm 1",
}
OUTPUTS = ("--output", "-o", "--plot", "--junit", "--certificate")  # options that name a file to be written
# Options that are drawn rarely, because they are slow or change little.
SLOW = ("--certify", "--certificate", "--plot", "--what", "--from-peft", "--help", "--help-all")


@cache
def command_of(name: str, sub: str) -> click.Command:
    """Return a command, or one of a group."""
    found = command_named(name)
    return found.get_command(click.Context(found), sub) if sub else found


@cache
def subcommands(name: str) -> tuple[str, ...]:
    """Return the commands of a group, or the empty name for a command that is not a group."""
    found = command_named(name)
    return tuple(found.list_commands(click.Context(found))) if isinstance(found, click.Group) else ("",)


def value_for(option: click.Option) -> st.SearchStrategy:
    """Draw a sensible value of an option, or sometimes an absurd one."""
    if isinstance(option.type, click.Choice):
        return often(st.sampled_from(list(option.type.choices)), st.sampled_from(ABSURD), 12)
    if option.opts[0] in OUTPUTS:
        return st.sampled_from(
            ["out.txt", "out.json", "out.toml", "out.svg", "out.html", "no/where", "", ".", "a\0b", "a\x1b[2K\nb"]
        )
    sane = st.sampled_from(SANE.get(str(option.name), ["1", "0.5", "10"]))
    absurd = st.one_of(st.sampled_from(ABSURD), decimals())
    if isinstance(option.type, Number) or str(option.name) in SANE:
        return often(sane, absurd, 4)
    names = st.sampled_from(sorted({bound for _, bound in BOUND_NAMES}))
    return often(names, absurd, 10)


def often(usual: st.SearchStrategy, rare: st.SearchStrategy, one_in: int) -> st.SearchStrategy:
    """Draw from ``rare`` once in ``one_in`` draws, else from ``usual``."""
    return st.integers(1, one_in).flatmap(lambda n: rare if n == one_in else usual)


def decimals() -> st.SearchStrategy:
    """Draw numbers of any size, as Python or C would print them."""
    return st.one_of(
        st.floats().map(repr), st.integers(-(10**20), 10**20).map(str), st.builds("{}e{}".format, *[st.integers()] * 2)
    )


@st.composite
def pairs(draw: st.DrawFn, command: click.Command, most: int, least: int = 0) -> list[list[str]]:
    """Draw options of a command with values."""
    options = [p for p in command.params if isinstance(p, click.Option)]
    usual = [o for o in options if o.opts[0] not in SLOW]
    chosen = draw(st.lists(often(st.sampled_from(usual), st.sampled_from(options), 25), min_size=least, max_size=most))
    return [[o.opts[0]] if o.is_flag else [o.opts[0], draw(value_for(o))] for o in chosen]


def overlaid(argv: list[str], given: list[list[str]]) -> list[str]:
    """Return the words with these options in place of their own."""
    names = {pair[0] for pair in given}
    kept, i = [], 0
    while i < len(argv):
        width = 2 if i + 1 < len(argv) and not argv[i + 1].startswith("--") else 1
        kept += [] if argv[i] in names else argv[i : i + width]
        i += width
    return kept + [word for pair in given for word in pair]


@st.composite
def calls(draw: st.DrawFn) -> Case:
    """Draw a query of a mechanism: its example or a random query, with some options replaced."""
    quantity = draw(often(st.sampled_from(QUICK), st.sampled_from(REQUESTED), 4))
    known = [name for name in subcommands(quantity) if name in MECHANISMS]
    cheap = [name for name in known if name not in DEAR]
    mechanism = draw(often(st.sampled_from(cheap or known), st.sampled_from(known), 5))
    base = " ".join([*example_arguments(mechanism, quantity), *NEEDED.get(quantity, TARGET)]).split()
    if quantity in QUANTITIES and draw(st.integers(0, 3)) == 0:
        quantity, mechanism, *base = draw(quick_queries()).command().split()[1:]
    bounds = [["--bound", name] for kind, name in BOUND_NAMES if kind == mechanism]
    command = command_of(quantity, mechanism)
    given = draw(pairs(command, 4, 1))
    if quantity != "compare" and draw(st.booleans()):
        given.append(draw(st.sampled_from(bounds)))
    argv = [quantity, mechanism, *overlaid(base, given)]
    return Case(tuple(noise(draw, argv + ["--json"] * (quantity in QUANTITIES and draw(st.booleans())))))


@st.composite
def lonely(draw: st.DrawFn) -> Case:
    """Draw a command without a mechanism and without a file."""
    name = draw(often(st.sampled_from(LONELY), st.just("dp-sft"), 20))
    sub = draw(st.sampled_from(subcommands(name)))
    given = draw(pairs(command_of(name, sub), 3, 1)) if name != "bounds" else [[draw(bound_name())]]
    sentence = [name, *([sub] if sub else []), *overlaid(BASES.get(sub or name, "").split(), given)]
    return Case(tuple(noise(draw, sentence)))


def bound_name() -> st.SearchStrategy:
    """Draw the argument of ``bounds``."""
    full = st.sampled_from([f"{kind}.{name}" for kind, name in BOUND_NAMES])
    return st.one_of(full, st.sampled_from(ABSURD), st.just("--json"))


def noise(draw: st.DrawFn, argv: list[str]) -> list[str]:
    """Add, drop or replace a word in one of twenty cases."""
    if draw(st.integers(0, 19)):
        return argv
    at = draw(st.integers(0, len(argv)))
    extra = draw(st.sampled_from([[], ["--json"], ["--nonsense"], ["--", "x"], ["\0"], ["--dim="], [draw(st.text())]]))
    return argv[:at] + extra + argv[at + draw(st.integers(0, 1)) :]


# --- files ----------------------------------------------------------------------------------------

# Values of TOML and JSON of right and wrong types; some are of neither language.
LITERALS = [
    "nan", "inf", "-inf", "1e400", "-1e400", "1e-400", "0", "-0.0", "-1", "2.5", "1e308", "5e-324", "1e15",
    "true", "false", "[]", "{}", "[1, 2]", "[[]]", "{a = 1}", '{"a": 1}', "''", '""', '"1"', '"nan"', '"\\u0000"',
    "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "0x10", "0o7", "1_000", "null", "None", "9" * 400, "9" * 5000,
    '"\\u001b[2K\\nok"',
    '["a", 1]', '["64x4"]', '["64x4x1000000000"]', '"\\ud800"', '"\U0001f600"', "1 2", "", '"' + "x" * 5000 + '"',
]  # fmt: skip

TEXTUAL = ("name", "query", "mechanism", "bound", "status", "sampling", "relation", "clipping", "split")
KEYS = sorted({*SANE, *TEXTUAL, "planned", "expect", "rtol", "at_most", "fixed_projection", "enforced", "layers"})
JUNK = [
    b"\0", b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"[" * 3000, b'{"a":' * 3000, b"a." * 3000 + b"a=1", b"9" * 5000,
    b"\n[[phase]]\n", b"\n[[bound]]\n", b"\n[phase]\n", b"\r", b"\n", b'"', b"'''", b"#", b"=", b",", b"nan",
    b"\xef\xbb\xbf", b"{", b"}", b"]", b"e400", b"-", b"\\u0000", b"null", b"NaN",
    b"Infinity", b"\xe2\x80\xa8", b"true",
]  # fmt: skip


def written(value: str) -> str:
    """Return a word of the command line as a value of TOML and JSON."""
    try:
        float(value)
        return value.lstrip("+")
    except ValueError:
        return json.dumps(value)


def sane_value(key: str) -> st.SearchStrategy:
    """Draw a value of the right type."""
    if key in ("layer", "layers"):
        return st.lists(st.sampled_from(SANE["layer"]), max_size=3).map(json.dumps)
    choices = {
        "mechanism": [*MECHANISMS, "dp-sgd"], "query": [*QUANTITIES], "bound": [name for _, name in BOUND_NAMES],
        "sampling": [*map(str, Sampling)], "relation": ["add-remove", "replace", "zero-out"],
        "clipping": ["joint", "per-layer"],
        "name": ["a", "b", "a: b", "a\x1b[2K\nok   b"], "status": ["proved", "conditional"],
    }  # fmt: skip
    sane = choices.get(key) or SANE.get(key) or ["1", "0.5", "true"]
    return st.sampled_from(sane).map(lambda text: text if text == "true" else written(text))


@st.composite
def entries(draw: st.DrawFn, needed: dict[str, str]) -> list[tuple[str, str]]:
    """Draw keys and literals of one entry: the example of a mechanism, required keys, and some more."""
    cheap = sorted(set(MECHANISMS) - set(DEAR))
    mechanism = draw(often(st.sampled_from(cheap), st.sampled_from(sorted(MECHANISMS)), 6))
    example = [pair.split("=") for pair in mechanism_named(mechanism).example.split()]
    given = {"mechanism": json.dumps(mechanism), **{k: written(v) for k, v in example}, **needed}
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=3)):
        given[key] = draw(often(sane_value(key), st.sampled_from(LITERALS), 3))
    return draw(shuffled(list(given.items())))


def shuffled(items: list[tuple[str, str]]) -> st.SearchStrategy:
    """Draw the items unchanged, with one missing, with one twice, or with the values permuted."""
    dropped = st.integers(0, len(items) - 1).map(lambda i: items[:i] + items[i + 1 :])
    doubled = st.integers(0, len(items) - 1).map(lambda i: [*items, items[i]])
    swapped = st.permutations([v for _, v in items]).map(lambda vs: list(zip([k for k, _ in items], vs, strict=True)))
    return st.integers(0, 19).flatmap(lambda n: {1: dropped, 2: doubled, 3: swapped}.get(n, st.just(items)))


def table(name: str, found: list[list[tuple[str, str]]], top: list[tuple[str, str]], kind: str) -> bytes:
    """Return entries as the text of a TOML or JSON file."""
    if kind == "toml":
        lines = [f"{k} = {v}" for k, v in top]
        lines += [line for items in found for line in (f"[[{name}]]", *(f"{k} = {v}" for k, v in items))]
        return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    rows = ["{" + ", ".join(f'"{k}": {v}' for k, v in items) + "}" for items in found]
    parts = [*(f'"{k}": {v}' for k, v in top), f'"{name}": [' + ", ".join(rows) + "]"]
    return ("{" + ", ".join(parts) + "}").encode("utf-8", "surrogatepass")


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw the data unchanged (half of the time), or with up to four ranges changed, cut, doubled or inserted."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 4]))):
        at, end = sorted(draw(st.integers(0, len(data))) for _ in range(2))
        junk = draw(st.one_of(st.sampled_from(JUNK), st.binary(max_size=3)))
        way = draw(st.integers(0, 4))
        middle = [junk, b"", data[at:end] * 2, junk + data[at:end], bytes([data[at] ^ 1]) if at < len(data) else b""]
        data = data[:at] + middle[way] + data[at + 1 if way in (0, 4) else end :]
    return data


@st.composite
def tables(draw: st.DrawFn, name: str, needed: dict[str, str], top: tuple[str, ...] = ()) -> tuple[str, bytes]:
    """Draw a file of entries and its name."""
    kind = draw(often(st.just("toml"), st.just("json"), 3))
    found = draw(st.lists(entries(needed), min_size=1, max_size=3))
    keys = draw(st.lists(st.sampled_from(top), max_size=1)) if top and draw(st.booleans()) else []
    heads = [(key, draw(often(sane_value(key), st.sampled_from(LITERALS), 2))) for key in keys]
    if kind == "toml":
        found = [[("name", f'"{i}"'), *items] if draw(st.booleans()) else items for i, items in enumerate(found)]
    return f"in.{kind}", draw(mutated(table(name, found, heads, kind)))


@st.composite
def runs(draw: st.DrawFn) -> Case:
    """Draw ``run``, ``remaining`` or ``report run`` on a run file."""
    name, data = draw(tables("phase", {}, ("relation", "discretization", "phase")))
    command = draw(st.sampled_from(["run", "run", "remaining", "report"]))
    base = {"run": draw(st.sampled_from(["--delta 1e-5", "--epsilon 1", "--calibrate --epsilon 1 --delta 1e-5"]))}
    base |= {"remaining": "--epsilon 1 --delta 1e-5", "report": "--delta 1e-5"}
    given = draw(pairs(command_of(command, "run" if command == "report" else ""), 1))
    head = ["report", "run"] if command == "report" else [command]
    return Case((*head, name, *overlaid(base[command].split(), given)), {name: data})


@st.composite
def checks(draw: st.DrawFn) -> Case:
    """Draw ``check`` on a regression file, with and without ``--update``."""
    needed = {"query": '"epsilon"', "delta": "1e-5", "epsilon": "1", "expect": draw(st.sampled_from(["1", "0.5", "0"]))}
    needed |= {"query": json.dumps(draw(often(st.sampled_from(QUICK), st.sampled_from(QUANTITIES), 6)))}
    needed.pop({'"epsilon"': "epsilon", '"delta"': "delta"}.get(needed["query"], ""), None)
    name, data = draw(tables("bound", needed))
    flags = draw(
        st.sampled_from([[], ["--update"], ["--update"], ["--junit", "out.xml"], ["--update", "--junit", name]])
    )
    return Case(("check", name, *flags), {name: data})


@st.composite
def ledgers(draw: st.DrawFn) -> Case:
    """Draw ``ledger`` or ``verify`` on a file of JSON lines."""
    header = '{"ledger": "privproj", "version": 2}'
    lines = [draw(often(st.just(header), st.sampled_from(LITERALS), 20))]
    for items in draw(st.lists(entries({"steps": "5"}), min_size=1, max_size=2)):
        phase = "{" + ", ".join(f'"{key}": {value}' for key, value in items) + "}"
        target = draw(often(st.just('{"epsilon": 1, "delta": 1e-5}'), st.sampled_from(LITERALS), 4))
        lines.append(f'{{"phase": {phase}, "target": {target}}}')
        lines += [f'{{"step": {i + 1}}}' for i in range(draw(st.integers(0, 4)))]
    data = chained_text(lines)
    command = draw(st.sampled_from(["ledger", "verify"]))
    given = draw(pairs(command_of(command, ""), 2))
    return Case((command, "in.jsonl", *overlaid([], given)), {"in.jsonl": draw(mutated(data))})


FILES = {
    b"r": (("run", "in.toml", "--delta", "1e-5"), "in.toml"),
    b"j": (("run", "in.json", "--epsilon", "1"), "in.json"),
    b"m": (("remaining", "in.toml", "--epsilon", "1", "--delta", "1e-5"), "in.toml"),
    b"c": (("check", "in.toml"), "in.toml"),
    b"u": (("check", "in.toml", "--update"), "in.toml"),
    b"l": (("ledger", "in.jsonl"), "in.jsonl"),
    b"v": (("verify", "in.json"), "in.json"),
    b"k": (("verify", "in.jsonl"), "in.jsonl"),
}


RUN_FILE = b'[[phase]]\nmechanism = "m2"\ndim = 64\nrank = 4\nnoise_multiplier = 1\nsteps = 3\n'
CHECK_FILE = b'[[bound]]\nmechanism = "gaussian"\nnoise_multiplier = 1\ndelta = 1e-5\nexpect = 4.4\nrtol = 0.1\n'
LEDGER_FILE = chained_text([
    '{"ledger": "privproj", "version": 2}',
    '{"phase": {"name": "a", "mechanism": "gaussian", "noise_multiplier": 1, "steps": 5}, "target": {"delta": 1e-05}}',
    '{"step": 1}',
])  # fmt: skip
# The initial corpus of atheris, in the format of from_bytes().
SEEDS = [
    *(kind + RUN_FILE for kind in (b"r", b"m")), *(kind + CHECK_FILE for kind in (b"c", b"u")),
    *(kind + LEDGER_FILE for kind in (b"l", b"k")),
    b'j{"phase": [{"mechanism": "gaussian", "noise_multiplier": 1, "steps": 3}]}',
    *(b"\0".join(line.split()) for line in (
        b"epsilon m2 --layer 64x4x2 --noise-multiplier 1 --delta 1e-5 --json", b"bounds m2.rank-free --json",
        b"sigma gaussian --epsilon 1 --log10-delta -5 --clip 2 --batch-size 8 --dataset-size 100 --epochs 2",
    )),
]  # fmt: skip


def from_bytes(data: bytes) -> Case:
    """Return bytes as a case: a key of FILES and the content of its file, or else words separated by NUL."""
    if data[:1] in FILES:
        argv, name = FILES[data[:1]]
        return Case(argv, {name: data[1:]})
    argv = tuple(word.decode("utf-8", "surrogateescape") for word in data.split(b"\0"))
    return Case(("bounds",) if argv[0] in ("train", "audit") else argv)


def raw() -> st.SearchStrategy:
    """Return the strategy of arbitrary bytes as files and of arbitrary words."""
    sentence = st.lists(st.one_of(st.sampled_from([*COMMANDS, *MECHANISMS, "--delta"]), st.text()), max_size=6)
    spoken = sentence.map(lambda found: "\0".join(found).encode("utf-8", "surrogatepass"))
    return st.one_of(st.builds(bytes.__add__, st.sampled_from(sorted(FILES)), st.binary()), spoken).map(from_bytes)


def everything() -> st.SearchStrategy:
    """Return the strategy of all cases, in which fast ones are more frequent."""
    kinds = [
        calls(),
        calls(),
        calls(),
        calls(),
        lonely(),
        runs(),
        checks(),
        ledgers(),
        ledgers(),
        *(cases() for cases in feature_items("CASES", "command_lines")),
        raw(),
    ]
    return st.integers(0, len(kinds) - 1).flatmap(lambda i: kinds[i])
