"""What is kept on disk and read again: run files, ledgers, certificates, sweeps and expected bounds.

The names below are the public interface; importing the package loads none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privproj.records.certificate import Certificate, CertificateVerdict, certify, load_certificate, verify
    from privproj.records.ledger import Account, read_ledger

__all__ = [
    "Account",
    "Certificate",
    "CertificateVerdict",
    "certify",
    "load_certificate",
    "read_ledger",
    "verify",
]

HOMES = {
    "certificate": ("Certificate", "CertificateVerdict", "certify", "load_certificate", "verify"),
    "ledger": ("Account", "read_ledger"),
}
"""Where each public name is, by module. Contract: these names stay importable from here."""


def __getattr__(name: str) -> object:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
