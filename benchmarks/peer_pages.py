"""Write the results of ``peers.py`` and ``speed.py`` as Markdown. No number here is written by hand."""

import tightness
from peer_jobs import JOBS, MEMORY_LIMIT

NONE = "-"
TOOLS = ("scipy (naive)", "dp-accounting", "prv-accountant", "Opacus", "riskcal")

TITLES = {
    "gaussian delta": "Gaussian, one release: delta",
    "gaussian epsilon": "Gaussian, one release: epsilon",
    "gaussian sigma": "Gaussian, one release: noise multiplier",
    "beta-tail": "M2 Beta-tail bound, tau optimized: epsilon, for each point of a sweep",
    "rank-free delta": "M2 rank-free bound: delta",
    "rank-free epsilon": "M2 rank-free bound: epsilon",
    "wishart delta": "Wishart mechanism, exact profile: delta",
    "dp-sgd epsilon": "DP-SGD composed: epsilon",
    "trade-off": "DP-SGD composed: trade-off function at 40 false positive rates",
    "dp-sgd sigma": "DP-SGD: noise multiplier for a target",
}

MADE = """\
Every row is one job by one tool in a fresh process with one thread, on {cores} shared cores: **ms** is CPU time of
a warm call, the least of several that differ by 1e-9 in a parameter so that no cache answers; **/ privproj** the
ratio to privproj's in the same run (below 1: faster than privproj); **cold ms** the CPU time of the whole process
up to its first answer, imports included; **peak MiB** what a call adds to the memory after the imports. **Error**
is relative (for the trade-off function a difference), positive above the reference: the safe side for delta,
epsilon and noise. The reference is mpmath where there is a formula (50 digits; where it needs a quadrature, 1e-12
or better); for composed runs the middle of the narrowest enclosure that privproj proves, whose relative half width
stands beside the setting; no error below it means anything. Tolerances and truncations of the peers are their
defaults unless said otherwise, so calibrations stop at different precisions (Opacus PRV and riskcal 1e-3 in epsilon
or so, dp-accounting 1e-4 in noise). The error of a sweep is the largest of its first 8 points (of the only one for
one shot). The reference of the trade-off function is the middle of two curves whose half distance stands beside the
setting, read at 3000 epsilons, for the worse of both orders of the neighbors; riskcal joins the two orders by a
rule of its own, so the sign of its difference says nothing about soundness. Others used the machine too (**load**:
the larger average before or after the job; where none stands it was not recorded), and jobs may come from different
runs (`--only`), a setting never: trust ratios within a setting, not milliseconds. A tool that gives no answer in
{timeout} s, needs more than {memory} GiB, is not installed or refuses says so. prv-accountant and Opacus PRV take a
tolerance in epsilon, not a grid: 0.1 where the others use 1e-3, else 0.01. Versions: {versions}."""

TIGHT = """\
Epsilon at delta 1e-5 by every bound of the registry, its ratio to the least epsilon that any of them guarantees
there, and its status. Conditional bounds ask promises of the data that others do not, so a larger ratio can be the
price of a weaker assumption; exact bounds are exact under their promises."""


SPEED = """\
CPU time with one thread on {cores} cores, the median and the quartiles of several calls that differ in a parameter so
that no cache answers. **Cold** works are whole commands in a fresh process of an editable installation whose byte code
is kept; **warm** ones are calls in a process that answered before. **/ yardstick** is the least time over that of
`python -c pass` (cold) or of a fixed piece of plain Python (warm, {size}) in the same run:
`python benchmarks/speed.py --check` compares it with what was kept. {before}**Best peer** is the fastest other
tool that answers the same question, from the tables below; a dash says that there is none, and no limit that was set.
{load}"""

BEFORE = "**Before** is another commit, alternating in the same run. "
IDLE = 1.3  # load above which other processes used the machine; the benchmark itself causes a load of one

# tasks that are also a job of the peers, with the parameters that identify the job
BEST_PEERS = {
    "warm: gaussian epsilon": ("gaussian epsilon", {"delta": 1e-5}),
    "warm: gaussian sigma": ("gaussian sigma", {"delta": 1e-5}),
    "warm: m2 rank-free epsilon": ("rank-free epsilon", {"rank": 16}),
    "warm: m2 rank-free delta": ("rank-free delta", {"rank": 16}),
    "warm: DP-SGD epsilon, T 1000": ("dp-sgd epsilon", {"z": 1.0, "T": 1000, "grid": 1e-4}),
    "warm: DP-SGD sigma, T 1000": ("dp-sgd sigma", {"T": 1000}),
}


def speed_tables(speed, peers):
    """The table of all works, and how they grow."""
    has_before = any("before" in row for row in speed["works"].values())
    said = SPEED.format(cores=speed["cores"], size="about 5 ms", before=BEFORE if has_before else "", load=load(speed))
    titles = ["work", *(["before"] if has_before else []), "now", "quartiles", "/ yardstick", "peak MiB", "best peer",
              "limit"]  # fmt: skip
    rows = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for name, row in speed["works"].items():
        before = [before_cell(row)] if has_before else []
        rows.append(f"| {' | '.join([name, *before, *speed_cells(name, row, peers)])} |")
    grown = [
        "| work | by size: CPU time, peak MiB | time grows like | memory grows like |",
        "| --- " * 4 + "|",
        *(growth_line(name, row) for name, row in speed["growth"].items()),
    ]
    lines = "\n".join(rows), "\n".join(grown)
    return f"## Works that users wait for\n\n{said}\n\n{lines[0]}\n\n## Growth\n\n{GROWN}\n\n{lines[1]}"


GROWN = "The power of the size that fits the times, and the peaks of memory, best (least squares of logarithms)."


def load(speed):
    """Whether the machine did something else while the works were measured."""
    busiest = max(row.get("load", 0.0) for row in speed["works"].values())
    said = f"The load of the machine was at most {busiest:.1f}, of which the benchmark is 1"
    return f"**{said}: others used it too, so that these times are too long.**" if busiest > IDLE else f"{said}."


def before_cell(row):
    """The time at the other commit, or why there is none."""
    before = row.get("before", {})
    return shown(before["seconds"]) if "seconds" in before else without_bars(before.get("failed", NONE))


def speed_cells(name, row, peers):
    """What was measured of one work."""
    limit = NONE if row.get("limit") is None else shown(row["limit"])
    if "failed" in row:
        return [f"**{without_bars(row['failed'])}**", *[NONE] * 4, limit]
    spread = f"{shown(row['low'])} to {shown(row['high'])}"
    size = f"{row['ratio']:.3g}", f"{row['peak_mib']:.1f}"
    return [shown(row["seconds"]), spread, *size, best_peer(name, peers), limit]


def without_bars(words):
    """Words that do not end a cell."""
    return words.replace("|", "/")


def best_peer(name, peers):
    """The fastest other tool on the same question, with its time."""
    job, wanted = BEST_PEERS.get(name, ("", {}))
    entries = [e for e in peers["jobs"] if e["job"] == job and wanted.items() <= e["parameters"].items()]
    found = [(per_point(r), r["tool"]) for e in entries for r in e["rows"] if "seconds" in r]
    others = [row for row in found if not row[1].startswith("privproj")]
    return f"{min(others)[1]}, {shown(min(others)[0])}" if others else NONE


def shown(seconds):
    """A time with three digits and its unit."""
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e3, "ms"), (1e6, "us")) if seconds * s >= 1.0 or u == "us")
    return f"{seconds * scale:.3g} {unit}"


def growth_line(name, row):
    """One work at all its sizes."""
    sizes = [
        f"{float(size):g}: " + (found.get("failed") or f"{shown(found['seconds'])}, {found['peak_mib']:.0f}")
        for size, found in row["rows"].items()
    ]
    powers = [NONE if row[key] is None else f"size^{row[key]:.2f}" for key in ("time", "memory")]
    return f"| {name} | {'; '.join(sizes)} | {powers[0]} | {powers[1]} |"


def tables(results):
    """What was measured of the peers, and how tight every bound is."""
    parts = [MADE.format(cores=results["cores"], timeout=results["timeout"], memory=MEMORY_LIMIT // 2**30,
                         versions=", ".join(" ".join(pair) for pair in results["versions"].items()))]  # fmt: skip
    for job, title in TITLES.items():
        found = [entry for entry in results["jobs"] if entry["job"] == job]
        if found:
            parts.append("\n".join([f"### {title}\n", *job_lines(job, found)]))
    parts.append("\n".join(["### Start of a peer's command line\n", *start_lines(results["start_up"])]))
    tight = "\n".join(tightness.lines(results["tightness"]))
    return "\n\n".join([*parts, f"## How tight every bound is\n\n{TIGHT}\n\n{tight}"])


SWEEPS = """\
Whole commands from the grid to the table, CPU and wall time of all their processes, and the largest process. The rows
are M2's rank-free deltas of five dimensions and four ranks, with as many noise multipliers as the number asks for."""


def sweep_lines(rows):
    """Sweeps by number of rows and of workers."""
    yield "| rows | workers | CPU s | wall s | us of CPU a row | peak MiB | load before |"
    yield "| --- " * 7 + "|"
    for row in rows:
        cells = f"{row['cpu']:.3g} | {row['wall']:.3g} | {1e6 * row['cpu'] / row['rows']:.3g} | {row['peak_mib']:.0f}"
        yield f"| {row['rows']:,} | {row['workers']} | {cells} | {row['load']:.1f} |"


def document(results, speed, sweeps):
    """docs/benchmarks.md."""
    swept = "\n".join(sweep_lines(sweeps))
    note = "\nThis was a quick run, without the long jobs of the peers.\n" if results["quick"] else ""
    return (
        "# Benchmarks\n\nWritten by `python benchmarks/all.py --peers DIR`; not edited by hand.\n"
        f"{note}\n{speed_tables(speed, results)}\n\n## Sweeps\n\n{SWEEPS}\n\n{swept}\n\n"
        f"## Time, error and memory beside others\n\n{tables(results)}\n"
    )


def job_lines(job, entries):
    """One table, the settings under each other."""
    yield "| setting | tool | answer | error | ms | / privproj | cold ms | peak MiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for entry in entries:
        base = next((per_point(row) for row in entry["rows"] if "seconds" in row), None)
        for i, row in enumerate(entry["rows"]):
            yield f"| {setting(entry) if i == 0 else ''} | {row['tool']} | {cells(row, base)} |"
    missing = [tool for tool in TOOLS if not any(name.startswith(tool) for name in JOBS[job])]
    if missing:
        yield f"\nNo function for this was found in: {', '.join(missing)}."


def setting(entry):
    """Parameters of a job, and how well the truth is known where it is not by formula."""
    words = ", ".join(f"{name} {value:g}" for name, value in entry["parameters"].items())
    known = f" (± {entry['half_width']:.1e})" if entry["half_width"] else ""
    return words + known + (f"; load {entry['load']:.1f}" if "load" in entry else "")


def per_point(row):
    """CPU seconds for one answer."""
    return row["seconds"] / row["points"]


def cells(row, base):
    """The measured cells of one tool."""
    if "failed" in row:
        return f"**{without_bars(row['failed'])}**" + f" | {NONE}" * 5
    answer = row["answer"].get("value")
    shown = NONE if answer is None else f"{answer:.6g}"
    error = NONE if "error" not in row else f"{row['error']:+.1e}"
    seconds = per_point(row)
    ms = f"{1e3 * seconds:.3g}"
    return f"{shown} | {error} | {ms} | {seconds / base:.3g} | {1e3 * row['cold']:.0f} | {max(row['peak_mib'], 0):.1f}"


def start_lines(rows):
    """CPU time of commands as multiples of ``python -c pass``."""
    base = rows[0]
    yield "| command | ms | / python -c pass (least) | (median) |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        least, middle = row["seconds"] / base["seconds"], row["median"] / base["median"]
        yield f"| {row['command']} | {1e3 * row['seconds']:.0f} | {least:.2f} | {middle:.2f} |"
