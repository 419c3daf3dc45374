"""What is kept on disk and read again: run files, ledgers, certificates, sweeps and expected bounds.

The names below are the public interface; importing the package loads none of them.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names

if TYPE_CHECKING:
    from privproj.records.certificate import Certificate, CertificateVerdict, certify, load_certificate, prove, verify
    from privproj.records.ledger import Account, read_ledger

__all__ = [
    "Account",
    "Certificate",
    "CertificateVerdict",
    "certify",
    "load_certificate",
    "prove",
    "read_ledger",
    "verify",
]

HOMES = {
    "certificate": ("Certificate", "CertificateVerdict", "certify", "load_certificate", "prove", "verify"),
    "ledger": ("Account", "read_ledger"),
}
"""Where each public name is, by module. Contract: these names stay importable from here."""

__getattr__, __dir__ = lazy_names(__name__, HOMES)
