from privproj.records.certificate import (
    Certificate as Certificate,
    CertificateVerdict as CertificateVerdict,
    certify as certify,
    load_certificate as load_certificate,
    prove as prove,
    verify as verify,
)
from privproj.records.ledger import Account as Account, read_ledger as read_ledger
