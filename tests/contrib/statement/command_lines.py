"""Hostile privacy statements for ``privproj verify``."""

from hypothesis import strategies as st

from tests.differential.command_lines import LITERALS, Case, entries, mutated, often


@st.composite
def statements(draw: st.DrawFn) -> Case:
    """Draw ``verify`` on a privacy statement of a drawn entry."""
    style = draw(often(st.just('"text"'), st.sampled_from(['"markdown"', '"html"', *LITERALS]), 4))
    items = draw(entries({"steps": "3"}))
    entry = "{" + ", ".join(f'"{key}": {value}' for key, value in items) + "}"
    kind = draw(st.sampled_from(STATEMENT_KINDS)) % entry
    delta = draw(often(st.just("1e-05"), st.sampled_from(LITERALS), 6))
    claims = draw(often(st.just(""), st.sampled_from(CLAIMS), 3))
    line = f'{{"privproj": "0.1.0", "style": {style}, "delta": {delta}, {claims}{kind}}}'
    data = f"PRIVACY STATEMENT\n\n{line}\nEnd of the privacy statement.\n".encode("utf-8", "surrogatepass")
    return Case(("verify", "in.txt", *(["--json"] if draw(st.booleans()) else [])), {"in.txt": draw(mutated(data))})


CLAIMS = (
    '"said": {"model": "a"}, ',
    '"said": {}, ',
    '"said": {"ledger": "0"}, ',
    '"said": "a", ',
    '"said": {"date": 1}, ',
)
STATEMENT_KINDS = (
    '"run": {"phase": [%s]}',
    '"run": {"phase": [%s], "discretization": 0.01}',
    '"run": {"phase": [%s]}, "ledger": {"made": [2], "insecure": false, "public_subspace": false, "alone": false, '
    '"notes": [], "filter": {}}',
)


CASES = (statements,)
