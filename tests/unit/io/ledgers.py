"""Ledgers of one and of several phases, and what a damaged one is read as."""

import privproj
from privproj.accounting.schedule import phase_of
from privproj.errors import InvalidParameterError
from privproj.io.ledger import Ledger, read_ledger

RELEASE = privproj.M2(dim=64, rank=4, noise_multiplier=1.0)
RUN = {"steps": 20, "sampling_rate": 0.25}
PHASE = phase_of(RELEASE, "m2", **RUN)
SECOND = phase_of(privproj.Gaussian(noise_multiplier=2.0), "dp-sgd", steps=5)
THIRD = phase_of(privproj.Gaussian(noise_multiplier=3.0), "dp-sgd", steps=12, sampling_rate=0.1)
TARGET = {"epsilon": 8.0, "delta": 1e-5}


def spend(path, steps, phase=PHASE, target=TARGET):
    book = Ledger(path, phase, target)
    for _ in range(steps):
        book.record()
    book.close()
    return book


def altered(path, content):
    """Return the account of an altered ledger; None if it is rejected with one sentence and a remedy."""
    path.write_bytes(content)
    try:
        return read_ledger(path)
    except InvalidParameterError as error:
        output = str(error)
        assert str(path) in output and "\n" not in output and "backup" in output and "planned step" in output
        return None


def covers(found, known):
    """Nothing is counted less: the same phases with at least the same steps, and no smaller epsilon."""
    if [entry for entry, _ in found.phases] != [entry for entry, _ in known.phases]:
        return False
    more = [now - was for (_, now), (_, was) in zip(found.phases, known.phases, strict=True)]
    return min(more) >= 0 and (not any(more) or found.epsilon(1e-5).value >= known.epsilon(1e-5).value)
