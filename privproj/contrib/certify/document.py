"""Let ``privproj verify`` recognize and check certificates."""

import re

from privproj_cli.render import closing
from privproj_cli.verify import DocumentKind, File, Rendered, render_verdict, unit_words

from privproj.contrib.certify.certificate import read_certificate, verify
from privproj.io.run_file import listed, releases_text

BEGINNING = re.compile(rb'\s*\{\s*"certificate"')  # every certificate begins so: the object has no other key


def verify_document(document: File) -> Rendered:
    """Check a certificate, and return the verdict with the claim and its assumptions."""
    claim = read_certificate(*document)
    verdict = verify(claim)
    verified = verdict.result
    releases = releases_text(verified)
    description = f"{len(releases)} phases: {'; '.join(releases)}" if len(releases) > 1 else releases[0]
    relation = unit_words(verified, f"; group size {verified.run['group_size']}")
    record = {
        "claim": f"{description}, relation {relation}: delta at epsilon {claim.epsilon!r} is at most {claim.upper}",
        "lower": verdict.lower,
        "upper": verdict.upper,
        "result": verified,
        **claim.record,
    }
    parts = {
        "bound": f"{verified.bound} at epsilon {claim.epsilon!r} ({verified.side}, {verified.status})",
        "source": verified.source,
        "relation": relation,
        "promise": verified.promises,
        **closing(verified),
        "target": listed(claim.target),
        "claimed": f"{claim.lower} <= delta <= {claim.upper}",
        "found": f"{verdict.lower} <= delta <= {verdict.upper}",
    }
    return render_verdict(verdict, "certificate", description, record, parts)


KIND = DocumentKind("a certificate", lambda content: BEGINNING.match(content) is not None, verify_document)
