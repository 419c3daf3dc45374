"""Measure CPU time and memory of a call or of a process, with the standard library alone, on Linux."""

import ctypes
import gc
import os
import time


def timed(call, *arguments):
    """Return ``(CPU seconds, result)`` of one call."""
    start = time.process_time()
    result = call(*arguments)
    return time.process_time() - start, result


def best_of(call, repeats):
    """Return ``(least CPU seconds, last result)`` of repeated calls."""
    rows = [timed(call) for _ in range(repeats)]
    return min(seconds for seconds, _ in rows), rows[-1][1]


def environment(path):
    """Return environment variables for one thread and modules from ``path``.

    Byte code is cached, as for an installed package.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def process(command, variables=None):
    """Return ``(CPU seconds, peak MiB, exit code)`` of a process with its children.

    Its output is discarded.
    """
    out, err = ((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2))
    command = [str(word) for word in command]
    child = os.posix_spawn(command[0], command, variables or os.environ, file_actions=[out, err])
    _, status, used = os.wait4(child, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def memory(field):
    """Return a memory size of this process in MiB: ``VmRSS`` (current) or ``VmHWM`` (peak)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def tidy():
    """Free unused memory, reset the peak, and return the current size in MiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    return memory("VmRSS")


def yardstick():
    """Run a fixed piece of plain Python, which takes about 10 ms.

    Times are measured as multiples of its time.
    """
    total, seen = 0.0, {}
    for i in range(20_000):
        x = 0.5 + i % 97
        total += _term(x)
        seen[i % 1000] = [total, x]
    return total + len(seen)


def _term(x):
    return (x * x + 1.0) ** 0.5 / (1.0 + abs(x))
