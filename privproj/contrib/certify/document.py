"""Certificates as documents of ``privproj verify``."""

import re

from privproj_cli.render import closing
from privproj_cli.verify import DocumentKind, File, Rendered, render_verdict, unit_words

from privproj.contrib.certify.certificate import read_certificate, verify
from privproj.io.run_file import listed, releases_text

BEGINNING = re.compile(rb'\s*\{\s*"certificate"')  # of every certificate: the object has no other key


def verify_document(document: File) -> Rendered:
    """Check a certificate, and return the verdict with the claim and what it assumes."""
    claim = read_certificate(*document)
    verdict = verify(claim)
    of = verdict.result
    releases = releases_text(of)
    what = f"{len(releases)} phases: {'; '.join(releases)}" if len(releases) > 1 else releases[0]
    relation = unit_words(of, f"; group size {of.run['group_size']}")
    record = {
        "claim": f"{what}, relation {relation}: delta at epsilon {claim.epsilon!r} is at most {claim.upper}",
        "lower": verdict.lower,
        "upper": verdict.upper,
        "result": of,
        **claim.record,
    }
    parts = {
        "bound": f"{of.bound} at epsilon {claim.epsilon!r} ({of.side}, {of.status})",
        "source": of.source,
        "relation": relation,
        "promise": of.promises,
        **closing(of),
        "target": listed(claim.target),
        "claimed": f"{claim.lower} <= delta <= {claim.upper}",
        "found": f"{verdict.lower} <= delta <= {verdict.upper}",
    }
    return render_verdict(verdict, "certificate", what, record, parts)


KIND = DocumentKind("a certificate", lambda content: BEGINNING.match(content) is not None, verify_document)
