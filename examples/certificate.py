"""Certify a result, save the certificate, and verify it later.

A certificate encloses delta at one epsilon in ball arithmetic. Anyone with the file can verify it without
trusting its author. Verification proves the number again from the query, at another precision.

Needs: the extra certify.
Run:   python examples/certificate.py
Prints the result (a noise multiplier of about 0.381), the proved enclosure of delta, that the saved certificate holds,
and that an altered certificate does not.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import privproj
from privproj.contrib.certify import certify, load_certificate, verify


def main() -> None:
    answer = privproj.sigma(privproj.M2(dim=2048, rank=16), epsilon=1.0, delta=1e-5)
    print(f"answer: noise multiplier {answer.value} meets epsilon 1 at delta 1e-05 ({answer.bound})")
    certificate = certify(answer)
    print(f"proved: delta(1) is at least {certificate.lower} and at most {certificate.upper}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        certificate.save(path)
        loaded = load_certificate(path)
    print("the saved certificate holds:", verify(loaded).holds)
    (phase,) = loaded.question["phase"]
    forged = replace(loaded, question={"phase": [{**phase, "noise_multiplier": 0.3}]})
    print("with less noise written into it, it holds:", verify(forged).holds)


if __name__ == "__main__":
    main()
