"""Count the files and functions of this project that one query executes, in Python and on the command line.

    python benchmarks/call_path.py            # counts
    python benchmarks/call_path.py --list     # counts, with every file and function

Module bodies, class bodies and imports are excluded: every module is imported by an identical query before. Lambdas and
comprehensions count with the function that contains them. Caches of values (``lru_cache``) are emptied before counting.
"""

import argparse
import contextlib
import functools
import gc
import io
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from privproj_cli.main import exit_code

import privproj
from privproj.result import Result

FOLDERS = tuple(str(Path(privproj.__file__).parents[1] / name) + "/" for name in ("privproj", "cli"))
COMMAND = "epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.5 --delta 1e-5"


def python_query() -> Result:
    return privproj.epsilon(privproj.M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)


def command_query() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exit_code(COMMAND.split())


def count_calls(query: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Return how often each function of this project is called, by file and qualified name."""
    query()
    for cached in [item for item in gc.get_objects() if isinstance(item, functools._lru_cache_wrapper)]:  # pyright: ignore
        if "compile" not in cached.__name__ and getattr(cached, "__module__", "").startswith("privproj"):
            cached.cache_clear()
    calls: Counter[tuple[str, str]] = Counter()

    def profiler(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(FOLDERS) and code.co_flags & 2:  # CO_NEWLOCALS: no body
            name = code.co_qualname.partition(".<locals>.<")[0]
            calls[code.co_filename, name] += not code.co_name.startswith("<")

    sys.setprofile(profiler)
    query()
    sys.setprofile(None)
    return +calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every file and function too")
    listed = parser.parse_args().list
    for title, query in (("Python", python_query), ("command line", command_query)):
        calls = count_calls(query)
        files = sorted({file for file, _ in calls})
        print(f"{title}: {len(files)} files, {len(calls)} functions, {calls.total()} calls")
        for file in files if listed else ():
            print(f"  {Path(file).relative_to(Path(privproj.__file__).parents[1])}")
            for (place, name), count in sorted(calls.items()):
                if place == file:
                    print(f"    {count:6} {name}")


if __name__ == "__main__":
    main()
