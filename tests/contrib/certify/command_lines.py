"""Hostile certificates for ``privproj verify``."""

import json
from functools import cache

from hypothesis import strategies as st

from tests.differential.command_lines import ABSURD, LITERALS, Case, mutated, often, written


@cache
def proofs() -> tuple[str, ...]:
    """Return valid certificates as text."""
    import privproj
    from privproj.contrib.certify.certificate import asdict, certify

    gaussian, m2 = privproj.Gaussian(noise_multiplier=1.0), privproj.M2(dim=64, rank=4, noise_multiplier=1.0)
    results = [privproj.epsilon(gaussian, delta=1e-5), privproj.delta(gaussian, epsilon=1.0, steps=3)]
    results += [privproj.delta(m2, epsilon=1.0, bound="gaussian"), privproj.delta(m2, epsilon=1.0)]
    return tuple(json.dumps({"certificate": asdict(certify(answer))}) for answer in results)


@st.composite
def certificates(draw: st.DrawFn) -> Case:
    """Draw ``verify`` on a certificate with some of its values replaced."""
    content = json.loads(draw(often(st.sampled_from(proofs()[:-1]), st.just(proofs()[-1]), 10)))["certificate"]
    for key in draw(st.lists(st.sampled_from(sorted(content)), min_size=1, max_size=2)):
        inner = isinstance(content[key], dict) and draw(st.booleans())
        place = content[key] if inner else content
        if inner and not place:
            continue
        name = draw(st.sampled_from(sorted([*place, "steps", "dim"] if inner else [key])))
        place[name] = "@" + draw(st.sampled_from([*LITERALS, *map(written, ABSURD[:30])])) + "@"
    text = json.dumps({"certificate": content})
    for literal in [*LITERALS, *map(written, ABSURD[:30])]:
        text = text.replace(json.dumps("@" + literal + "@"), literal)
    data = draw(mutated(text.encode("utf-8", "surrogatepass")))
    return Case(("verify", "in.json", *(["--json"] if draw(st.booleans()) else [])), {"in.json": data})


CASES = (certificates,)
