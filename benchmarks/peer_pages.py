"""Write docs/benchmarks.md from the results of ``peers.py``, ``speed.py``, ``sweep.py`` and ``tightness.py``.

The page shows the rows that matter for a decision, and the code fills their numbers in. ``python
benchmarks/peers.py --again`` prints all comparisons with other tools. The section on balls-in-bins is copied from the
output of ``balls_in_bins.py``.
"""

import tightness

NONE = "-"
FAILS = "fails"

PAGE = """\
<!-- Written by benchmarks/all.py from benchmarks/results: edit benchmarks/peer_pages.py. -->

# Benchmarks

* **Time of one release.** privproj computes epsilon in {one_least} to {one_most}.
* **Time of a DP-SGD run.** privproj computes epsilon in {run} for 1000 steps and in {long_run} for 1e9 steps.
* **Time of a command.** `privproj epsilon` for DP-SGD takes {command_run}, including the start of Python.
* **PLD accountant of dp-accounting.** For DP-SGD, it is about as accurate as privproj, and takes {pld} times as long.
* **prv-accountant.** For DP-SGD, its epsilon is {prv_error} too large, and it takes {prv} times as long as privproj.
* **RDP accountants of dp-accounting and Opacus.** For DP-SGD, their epsilon is {rdp_error} too large.

## Time and memory of a query

The table shows the median CPU time of several calls, with one thread on a machine with {cores} cores. The memory of a
Python function is the additional memory of the call. The memory of a command is the memory of the whole
process.{load}

{speed}

CPU time grows linearly with the number of phases of a run and, with per-layer clipping, with the number of layers. The
function `epsilons` computes epsilon at arrays of parameters, and its CPU time grows linearly with their length. CPU
time hardly depends on the number of steps.

`privproj sweep` computes {sweep_rows:,} values of delta for M2 in {sweep_cpu:.1f} s of CPU time with
{sweep_mib:.0f} MiB of memory.

## Other tools

The tables compare privproj with other tools at delta 1e-5. In the queries, z is the noise multiplier, q the sampling
rate, T the number of steps, d the dimension and r the rank.

A cell with `-` means that the tool has no function for the query. "{fails}" means an error, more than {timeout} s or
more than 8 GiB.{quick}

The first table shows the CPU time of the fastest of several calls. dp-accounting PLD uses the discretization interval
1e-4, and prv-accountant the error tolerance 0.01 in epsilon.

{peer_times}

The second table shows the relative error of epsilon or sigma. If the error is positive, the value is too large.

{peer_errors}

The exact values for Gaussian and M2 are computed by mpmath. For DP-SGD, the exact value is not known, so privproj
proves an interval that contains it. The errors are relative to the middle of this interval, and the last column is the
relative half width of the interval. Ignore differences between tools that are smaller than the half width.

The scipy functions are a few lines of floating-point arithmetic without control of rounding errors. Their epsilon can
be slightly too small. The epsilon of privproj is never too small.

Versions: {versions}.

## Large epsilons

The table shows two queries for DP-SGD with sampling rate 0.01, 1000 steps and delta 1e-6. The first query computes
epsilon at noise multiplier 0.05. The second query computes the noise multiplier for epsilon 1000. The CPU time is in
parentheses.{large_load}

{large}

## Tightness of the bounds

The table compares the [bounds](bounds/README.md) of each mechanism at delta 1e-5. The last column contains the epsilon
of each bound, divided by the smallest epsilon of all bounds.

A star marks a bound that needs an assumption on the data. Compare such a bound only with bounds under the same
assumption. In the runs, z is the noise multiplier, q the sampling rate, d the dimension and r the rank.
[Notation](notation.md#projections) defines gamma, misalignment and `change_rank`.

{tight}

In each run of the table, the default bound has the smallest epsilon of all bounds with the same assumptions.
[How far is epsilon from the truth?](lower-bounds.md) compares default bounds with lower bounds.

## Balls-in-bins

The table shows the epsilon of Gaussian runs with [balls-in-bins](explain.md#balls-in-bins) sampling. z is the noise
multiplier, and t is the number of batches per epoch. privproj and PLD_accounting 2.0 compute a lower and an upper bound
on epsilon. random_allocation 1.0.5 computes an upper bound. The last column is epsilon for Poisson sampling at rate
1/t, computed by dp-accounting 0.6.0.

| run | privproj | PLD_accounting | random_allocation | dp-accounting, Poisson |
| --- | --- | --- | --- | --- |
| z 1, t 1000, 1 epoch, delta 1e-6 | 0.17160 to 0.17184 | 0.16865 to 0.17569 | 0.2908 | 0.1856 |
| z 0.8, t 200, 1 epoch, delta 1e-5 | 0.91218 to 0.91386 | 0.89988 to 0.92939 | 1.3864 | 0.9878 |
| z 1, t 100, 20 epochs, delta 1e-5 | 2.4481 to 2.4525 | 2.4107 to 2.4954 | 2.7158 | 2.5839 |

In five runs with balls-in-bins sampling, privproj takes 0.1 s to 0.2 s, and PLD_accounting takes 0.8 s to 16 s.

## Measure again

`python benchmarks/all.py --peers DIR` installs the other tools in a new environment DIR, measures everything and writes
this page. The measurements are in `benchmarks/results`.
"""

# name in speed.json -> row of the page
QUERIES = {
    "warm: gaussian epsilon": "`epsilon` of `Gaussian`, one release",
    "warm: m2 rank-free epsilon": "`epsilon` of `M2`, one release",
    "warm: wishart epsilon": "`epsilon` of `Wishart`, one release",
    "warm: DP-SGD epsilon, T 1000": "`epsilon` of DP-SGD, 1000 steps",
    "warm: DP-SGD epsilon, T 1e+09": "`epsilon` of DP-SGD, 1e9 steps",
    "warm: m2 epsilon, T 2000": "`epsilon` of `M2`, 2000 steps",
    "warm: m2 sigma, T 2000": "`sigma` of `M2`, 2000 steps",
    "warm: 1000 phases": "`epsilon` of a run of 1000 phases",
    "warm: m2 rank-free: epsilons, 1e5 rows": "`epsilons` of `M2`, 100,000 rows",
    "cold: epsilon gaussian": "command `privproj epsilon gaussian`, one release",
    "cold: epsilon gaussian, DP-SGD": "command `privproj epsilon gaussian`, DP-SGD",
    "cold: epsilon m2 of a run": "command `privproj epsilon m2`, 2000 steps",
    "cold: certify wishart of a run": "command `privproj certify epsilon wishart`, 10 releases",
}
ONE_RELEASE = ("gaussian", "m2 rank-free", "m1", "wishart", "sketch exact-rank1")

# title of a row -> job of peers.json and the parameters that identify it
JOBS = {
    "epsilon of Gaussian, z 1": ("gaussian epsilon", {"delta": 1e-5}),
    "epsilon of M2, d 2048, r 16, z 0.5": ("rank-free epsilon", {}),
    "epsilon of DP-SGD, z 1, q 0.01, T 1000": ("dp-sgd epsilon", {"T": 1000, "grid": 1e-4}),
    "epsilon of DP-SGD, z 0.6, q 0.001, T 100,000": ("dp-sgd epsilon", {"T": 100000, "grid": 1e-4}),
    "epsilon of DP-SGD, z 2, q 0.05, T 1,000,000": ("dp-sgd epsilon", {"T": 1000000, "grid": 1e-4}),
    "sigma of DP-SGD, epsilon 3, q 0.01, T 1000": ("dp-sgd sigma", {}),
}
TOOLS = ("privproj", "scipy (naive)", "dp-accounting PLD", "dp-accounting RDP", "prv-accountant", "Opacus RDP")
LARGE = ("epsilon, z 0.05", "noise multiplier, epsilon 1000")  # the queries of large_epsilons.json on the page
IDLE = 1.3  # load above which other processes used the machine; the benchmark itself causes a load of one


def shown(seconds):
    """Return a time with three digits and its unit."""
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if seconds * s >= 1.0 or u == "µs")
    return f"{seconds * scale:.3g} {unit}"


def table(titles, rows):
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def speed_table(works):
    """Return the table of queries and their times."""
    rows = [(title, shown(works[name]["seconds"]), f"{works[name]['peak_mib']:.0f}") for name, title in QUERIES.items()]
    return table(["query", "CPU time", "peak memory (MiB)"], rows)


def load_text(works):
    """Return a sentence if other processes used the machine during the measurement of the queries."""
    busiest = max(row.get("load", 0.0) for row in works.values())
    return (
        f" Other processes used the machine (load {busiest:.1f}), so these times are too long."
        if busiest > IDLE
        else ""
    )


def entry_of(jobs, job, wanted):
    """Return the job of peers.json with these parameters."""
    return next(entry for entry in jobs if entry["job"] == job and wanted.items() <= entry["parameters"].items())


def per_point(row):
    """Return the CPU seconds of one result."""
    return row["seconds"] / row["points"]


def peer_table(jobs, head, cell, more=()):
    """Return a table of the chosen jobs by all tools.

    ``head`` is the head of the first column, ``cell`` returns the text of a row, and ``more`` has pairs: the head of
    another column, and the function that returns its text from the job.
    """
    lines = []
    for title, (job, wanted) in JOBS.items():
        entry = entry_of(jobs, job, wanted)
        rows = {row["tool"]: row for row in entry["rows"]}
        cells = [NONE if tool not in rows else FAILS if "failed" in rows[tool] else cell(rows[tool]) for tool in TOOLS]
        lines.append((title, *cells, *(column(entry) for _, column in more)))
    return table([head, *TOOLS, *(other for other, _ in more)], lines)


def milliseconds(row):
    """Return the CPU time of one result in ms, without an exponent."""
    value = 1e3 * per_point(row)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def uncertainty(entry):
    """Return the half width of the interval that the reference value is the middle of."""
    return f"± {entry['half_width']:.0e}" if entry["half_width"] else "0"


def composed_rows(jobs, tool):
    """Return the successful rows of a tool on DP-SGD epsilons at every grid, each with privproj's row."""
    entries = [{row["tool"]: row for row in entry["rows"]} for entry in jobs if entry["job"] == "dp-sgd epsilon"]
    return [(rows[tool], rows["privproj"]) for rows in entries if "failed" not in rows[tool]]


def slower(jobs, tool):
    """Return how many times as long as privproj a tool takes for DP-SGD, as a range."""
    ratios = [per_point(row) / per_point(own) for row, own in composed_rows(jobs, tool)]
    return f"{min(ratios):.0f} to {max(ratios):.0f}"


def too_large(jobs, *tools):
    """Return the relative errors of tools for DP-SGD, as a range in percent."""
    errors = [100 * row["error"] for tool in tools for row, _ in composed_rows(jobs, tool)]
    return f"{min(errors):.1g} % to {max(errors):.2g} %"


def large_table(queries):
    """Return the results for large epsilons: a row for each tool, with the value and its time, or why it fails."""
    tools = next(iter(queries.values()))
    rows = [(tool, *(large_cell(found[tool]) for found in queries.values())) for tool in tools]
    return table(["tool", *queries], rows)


def large_cell(row):
    """Return a value with its CPU time, or the reason of the failure."""
    return f"{FAILS}: {row['failed']}" if "failed" in row else f"{row['value']:.5g} ({row['seconds']:.2g} s)"


def more_noise(queries):
    """Return how much more noise the Renyi accountants need than privproj, as a range in percent."""
    (found,) = (rows for title, rows in queries.items() if title.startswith("noise multiplier"))
    ratios = [found[tool]["value"] / found["privproj"]["value"] for tool in ("dp-accounting RDP", "Opacus RDP")]
    least, most = (f"{100 * (ratio - 1):.0f} %" for ratio in (min(ratios), max(ratios)))
    return least if least == most else f"{least} to {most}"


def document(results, speed, sweeps, large):
    """Return the text of docs/benchmarks.md."""
    jobs, works = results["jobs"], speed["works"]
    one = [works[f"warm: {name} epsilon"]["seconds"] for name in ONE_RELEASE]
    longest = max(sweeps, key=lambda row: (row["rows"], -row["workers"]))
    shared = max(sweeps, key=lambda row: (row["rows"], row["workers"]))
    return PAGE.format(
        quick=" This was a quick run without long queries." if results["quick"] else "",
        one_least=shown(min(one)), one_most=shown(max(one)),
        run=shown(works["warm: DP-SGD epsilon, T 1000"]["seconds"]),
        long_run=shown(works["warm: DP-SGD epsilon, T 1e+09"]["seconds"]),
        command_run=shown(works["cold: epsilon gaussian, DP-SGD"]["seconds"]),
        pld=slower(jobs, "dp-accounting PLD"), prv=slower(jobs, "prv-accountant"),
        prv_error=too_large(jobs, "prv-accountant"), rdp_error=too_large(jobs, "dp-accounting RDP", "Opacus RDP"),
        cores=speed["cores"], load=load_text(works), speed=speed_table(works),
        sweep_rows=longest["rows"], sweep_cpu=longest["cpu"], sweep_mib=longest["peak_mib"], sweep_wall=shared["wall"],
        fails=FAILS, timeout=results["timeout"],
        peer_times=peer_table(jobs, "query (CPU time in ms)", milliseconds),
        peer_errors=peer_table(
            jobs,
            "relative error of",
            lambda row: f"{row['error']:+.0e}",
            [("uncertainty of the exact value", uncertainty)],
        ),
        versions=", ".join(" ".join(pair) for pair in results["versions"].items()),
        large=large_table({title: large["queries"][title] for title in LARGE}),
        more_noise=more_noise(large["queries"]),
        large_load=" Other processes used the machine, so these times are too long." if large["load"] > IDLE else "",
        tight="\n".join(tightness.summary(results["tightness"])),
    )  # fmt: skip


def tables(results):
    """Return every comparison with other tools, for the terminal."""
    return "\n\n".join("\n".join([entry["job"], *all_rows(entry)]) for entry in results["jobs"])


def all_rows(entry):
    """Return the lines of one job: the parameters, and result, error, times and memory of each tool."""
    yield ", ".join(f"{name} {value:g}" for name, value in entry["parameters"].items())
    base = next((per_point(row) for row in entry["rows"] if "seconds" in row), None)
    for row in entry["rows"]:
        if "failed" in row:
            yield f"{row['tool']}: {row['failed']}"
            continue
        value, error = row["answer"].get("value", float("nan")), row.get("error", float("nan"))
        yield (
            f"{row['tool']}: {value:.6g}, error {error:+.1e}, {1e3 * per_point(row):.3g} ms, "
            f"{per_point(row) / base:.3g} x privproj, first {1e3 * row['cold']:.0f} ms, {row['peak_mib']:.1f} MiB"
        )
