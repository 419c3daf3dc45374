"""Let ``privproj verify`` recognize and check certificates."""

import re

from privproj_cli.render import bound_text
from privproj_cli.verify import DocumentKind, File, Rendered, render_verdict, unit_text

from privproj.contrib.certify.certificate import read_certificate, verify
from privproj.io.run_file import listed, releases_text

BEGINNING = re.compile(rb'\s*\{\s*"certificate"')  # every certificate begins so: the object has no other key


def verify_document(document: File) -> Rendered:
    """Check a certificate, and return the verdict as ``privproj verify`` prints it."""
    claim = read_certificate(*document)
    verdict = verify(claim)
    verified = verdict.result
    releases = releases_text(verified)
    description = f"{len(releases)} phases: {'; '.join(releases)}" if len(releases) > 1 else releases[0]
    title = f"a certificate of {description}"
    relation = unit_text(verified, f"; group size {verified.run['group_size']}")
    record = {
        "claim": f"{description}, relation {relation}: delta at epsilon {claim.epsilon!r} is at most {claim.upper}",
        "lower": verdict.lower,
        "upper": verdict.upper,
        "result": verified,
        **claim.record,
    }
    parts = {
        "assumes": verified.data_assumptions,
        "claimed": f"{claim.lower} <= delta <= {claim.upper} at epsilon {claim.epsilon!r}",
        "computed": f"{verdict.lower} <= delta <= {verdict.upper}",
        "bound": f"{bound_text(verified)}, {verified.side}",
        "neighbors": relation,
        "requires": verified.requirements,
        "warnings": verified.warnings,
    }
    details = {"source": verified.source, "target": listed(claim.target)}
    return render_verdict(verdict, "certificate", title, record, parts, details)


KIND = DocumentKind("a certificate", lambda content: BEGINNING.match(content) is not None, verify_document)
