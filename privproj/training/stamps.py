"""Stamps: what a run has trained says which releases it is made of, so that a second start on it counts them too.

The first release of a run leaves a stamp on every tensor that it trains, and on the modules around these. A later start
on any of them needs an account that holds the releases of the stamp: that of the same ledger, or that of the search for
its subspace. Tensors keep stamps under other optimizers, heads and wrappers. Modules keep them where adapters are
merged, and take them into copies and pickles. Weights that were loaded into another module have none.
"""

import json
from collections.abc import Iterator
from typing import Any

import torch

from privproj.errors import InvalidParameter
from privproj.records.ledger import Account
from privproj.training.capture import Taps

STAMP = "_privproj_releases"
"""The attribute that is the stamp, plain data so that it is pickled with what it is on. Contract."""


class Stamps:
    """The stamp of a run, and those that earlier runs have left on its module and on the tensors of its optimizer.

    A stamp is the random name of a ledger, None for a run without one, with the phases of its account up to then. The
    ``account`` is what the run counts, its own phase last, ``name`` that of its ledger, and ``path`` is for messages.
    """

    def __init__(
        self, taps: Taps, optimizer: torch.optim.Optimizer, account: Account, name: str | None, path: str | None
    ) -> None:
        self.taps, self.path, self.left = taps, path, False
        held = (("optimizer", p) for group in optimizer.param_groups for p in group["params"])
        self.parts = (*taps.module.named_modules(), *taps.module.named_parameters(), *held)
        self.own = {"ledger": name, "phases": [[json.dumps(entry), steps] for entry, steps in account.phases]}

    def earlier(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The stamps of other runs, each with the name of its place."""
        for name, part in self.parts:
            stamp = vars(part).get(STAMP)
            if stamp is not None and stamp is not self.own:
                yield name or "module", stamp

    def check(self) -> None:
        """Raise :class:`InvalidParameter` unless the account holds all releases that there are stamps of."""
        phases = self.own["phases"]
        for name, stamp in self.earlier():
            pairs = list(zip(stamp["phases"], phases, strict=False))
            held = len(pairs) == len(stamp["phases"]) and all(a[0] == b[0] and a[1] <= b[1] for a, b in pairs)
            if not held or stamp["ledger"] != self.own["ledger"]:
                raise InvalidParameter(
                    "ledger", self.path or "nothing",
                    f"the ledger that holds the releases which {name} has from an earlier start",
                    "no ledger holds them: build the module anew, and give every start the same ledger=PATH"
                    if stamp["ledger"] is None
                    else "give the ledger=PATH of that start, so that both are counted together; for other people's "
                    "records load the weights into a module built anew, and begin another ledger",
                )  # fmt: skip

    def count(self) -> None:
        """Count one release more of the run; the first one leaves the stamp on all that the run trains."""
        self.own["phases"][-1][1] += 1
        if self.left:
            return
        trained = {id(p): p for tap in self.taps.taps for p in tap.parameters}
        around = (m for m in self.taps.module.modules() if any(id(p) in trained for p in m.parameters()))
        for part in (*around, *trained.values()):
            vars(part)[STAMP] = self.own
        self.left = True
