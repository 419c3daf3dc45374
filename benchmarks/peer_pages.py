"""Markdown of what ``peers.py`` measured. No number here is written by hand."""

import tightness
from peer_jobs import JOBS, MEMORY_LIMIT

TOOLS = ("scipy (naive)", "dp-accounting", "prv-accountant", "Opacus", "riskcal")

TITLES = {
    "gaussian delta": "Gaussian, one release: delta",
    "gaussian epsilon": "Gaussian, one release: epsilon",
    "gaussian sigma": "Gaussian, one release: noise multiplier",
    "beta-tail": "M2 Beta-tail bound, tau optimised: epsilon, for each point of a sweep",
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
setting, read at 3000 epsilons, for the worse of both orders of the neighbours; riskcal joins the two orders by a
rule of its own, so the sign of its difference says nothing about soundness. Others used the machine too (**load**:
the larger average before or after the job; where none stands it was not recorded), and jobs may come from different
runs (`--only`), a setting never: trust ratios within a setting, not milliseconds. A tool that gives no answer in
{timeout} s, needs more than {memory} GiB, is not installed or refuses says so. prv-accountant and Opacus PRV take a
tolerance in epsilon, not a grid: 0.1 where the others use 1e-3, else 0.01. Versions: {versions}."""

TIGHT = """\
Epsilon at delta 1e-5 by every bound of the registry, its ratio to the least epsilon that any of them guarantees
there, and its status. Conditional bounds ask promises of the data that others do not, so a larger ratio can be the
price of a weaker assumption; exact bounds are exact under their promises."""


def tables(results):
    """All tables."""
    parts = [MADE.format(cores=results["cores"], timeout=results["timeout"], memory=MEMORY_LIMIT // 2**30,
                         versions=", ".join(" ".join(pair) for pair in results["versions"].items()))]  # fmt: skip
    for job, title in TITLES.items():
        found = [entry for entry in results["jobs"] if entry["job"] == job]
        if found:
            parts.append("\n".join([f"### {title}\n", *job_lines(job, found)]))
    parts.append("\n".join(["### Start of the command line\n", *start_lines(results["start_up"])]))
    tight = "\n".join(tightness.lines(results["tightness"]))
    return "\n\n".join([*parts, f"## How tight every bound is\n\n{TIGHT}\n\n{tight}"])


def document(results):
    """docs/benchmarks.md."""
    note = "\nThis was a quick run, without the long jobs.\n" if results["quick"] else ""
    return (
        "# Benchmarks\n\nWritten by `python benchmarks/peers.py --write --peer-python PATH`; not edited by hand.\n"
        f"{note}\n## Time, error and memory\n\n{tables(results)}\n"
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
        return f"**{row['failed'].replace('|', '/')}** | | | | |"
    answer = row["answer"].get("value")
    shown = "" if answer is None else f"{answer:.6g}"
    error = "" if "error" not in row else f"{row['error']:+.1e}"
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
