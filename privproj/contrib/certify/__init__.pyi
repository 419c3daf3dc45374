from privproj.contrib.certify.certificate import (
    Certificate as Certificate,
    CertificateVerdict as CertificateVerdict,
    certify as certify,
    load_certificate as load_certificate,
    prove as prove,
    verify as verify,
)
