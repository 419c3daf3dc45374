"""Certify a result, save the certificate, load it and verify it.

A certificate contains proved lower and upper bounds on delta at one epsilon. Anyone with the file can verify it without
trusting its author, because verification proves both bounds again.

Needs: the extra certify.
Run:   python examples/certificate.py
Prints a noise multiplier of about 0.381 and the proved bounds on delta. It also prints that the saved certificate holds
(True) and that an altered certificate does not (False).
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import privproj
from privproj.contrib.certify import certify, load_certificate, verify


def main() -> None:
    result = privproj.sigma(privproj.M2(dim=2048, rank=16), epsilon=1.0, delta=1e-5)
    print(f"noise multiplier {result.value} meets epsilon 1 at delta 1e-05 ({result.bound})")
    certificate = certify(result)
    print(f"proved: delta(1) is at least {certificate.lower} and at most {certificate.upper}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        certificate.save(path)
        loaded = load_certificate(path)
    print("the saved certificate holds:", verify(loaded).holds)
    (phase,) = loaded.question["phase"]
    altered = replace(loaded, question={"phase": [{**phase, "noise_multiplier": 0.3}]})
    print("the certificate with a smaller noise multiplier holds:", verify(altered).holds)


if __name__ == "__main__":
    main()
