"""Audit membership at small scale: AUC of a poisoned canary by mechanism, rank and noise, with the published trend.

``python benchmarks/membership.py [MODELS]`` trains MODELS shadow models (200 by default) for each row: a linear head on
200 digits for 30 steps at clipping norm 4. It saves the table as JSON under ``benchmarks/results/``. Published values
(arXiv 2601.21719, tables of Appendix F, larger models): LoRA-FA without noise at least 0.996 at all ranks; M2 with
noise 0.1: 0.78 to 1.00 from rank 16 to 512, noise 0.5: 0.56 to 0.86; M1 from rank 32 to 1000: 0.62 to 0.87.
"""

import json
import math
import sys
from itertools import pairwise
from pathlib import Path

from privproj.contrib.audit.epsilon_lower import auc, balanced_accuracy
from privproj.contrib.audit.membership import Game, poisoned

ROWS = [
    *(("lora-fa", 0.0, rank) for rank in (4, 16, 64)),
    *(("m2", noise, rank) for noise in (1.0, 4.0, 16.0) for rank in (4, 16, 64)),
    *(("projected-dp-sgd", 4.0, rank) for rank in (64, 256)),
    ("dp-sgd", 4.0, None),
    ("dp-sgd", 16.0, None),
]


def ordered(rows, key):
    """Return whether the AUC never decreases along rows with equal ``key``.

    Decreases within two standard errors of each row are ignored.
    """
    groups = [[row for row in rows if row[key] == value] for value in {row[key] for row in rows}]
    pairs = [pair for own in groups for pair in pairwise(own)]
    return all(a["auc"] <= b["auc"] + 2 * (a["error"] + b["error"]) for a, b in pairs)


def main():
    models = int(sys.argv[1]) // 2 if len(sys.argv) > 1 else 100
    rows = []
    print("| mechanism | noise | rank | AUC | +- | best balanced accuracy |\n| --- | --- | --- | --- | --- | --- |")
    for mechanism, noise, rank in ROWS:
        game = Game(mechanism=mechanism, rank=rank, noise_multiplier=noise)
        scores = poisoned(game, models, workers=2)
        area, error = auc(*scores), math.sqrt(1.0 / (6.0 * models))
        rows.append({"mechanism": mechanism, "noise": noise, "rank": rank, "auc": area, "error": error})
        best = balanced_accuracy(*scores)
        print(f"| {mechanism} | {noise:g} | {rank or '-'} | {area:.3f} | {error:.3f} | {best:.3f} |", flush=True)
    m2 = [row for row in rows if row["mechanism"] == "m2"]
    trends = {
        "M2: AUC grows with rank": ordered(m2, "noise"),
        "M2: AUC falls with noise": ordered(list(reversed(m2)), "rank"),
    }
    for trend, seen in trends.items():
        print(f"{trend}: {'seen' if seen else 'not seen'} (within two standard errors)")
    target = Path(__file__).parent / "results" / "membership.json"
    target.write_text(json.dumps({"models": 2 * models, "rows": rows, "trends": trends}, indent=2) + "\n")


if __name__ == "__main__":
    main()
