"""The parts of the schema of run files that parameters declare: kinds, ranges and words, and the keys of mechanisms.

What else the schema says, of keys that go together for instance, stands in the file itself and stays as it is.
"""

import json
import re
from pathlib import Path
from typing import Any

from privproj.accounting.config import ALIASES, keys_of
from privproj.io.run_file import FOR_ALL, PHASE_KEYS
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import bound_names, mechanism_named
from privproj.parameters import Parameter, parameters_of
from privproj.run import RUN_PARAMETERS, Run
from privproj.sampling import Sampling

SCHEMA = Path(__file__).parents[1] / "privproj" / "run_schema.json"
RESULTS = SCHEMA.with_name("schema.json")
OF_PHASES = {
    "name": {"type": "string"},
    "event": {"$ref": "#/$defs/event", "description": "an event of dp-accounting"},
    "bound": {"type": "string"},
    "planned": {"type": "boolean", "description": "not released yet"},
}
"""The keys of a phase that are no parameters."""
NOT_IN_RESULTS = ("discretization", "split")  # fields of a run that a result does not repeat


def rule_of(declared: Parameter) -> dict[str, Any]:
    """The rule for the value of a parameter, with its words."""
    return {**declared.kind.rule, **({"description": declared.description} if declared.description else {})}


def mechanism_rule(name: str, kind: type[Mechanism]) -> dict[str, Any]:
    """The rule that a phase of this mechanism has its keys, each within its range, and no others."""
    names = [name, *(other for other, meant in ALIASES.items() if meant == name)]
    known = [key for key in keys_of(kind, PHASE_KEYS) if key not in FOR_ALL or key == "relation"]
    own = {found.key or field: rule_of(found) for field, found in parameters_of(kind).items()}
    return {
        "if": {"required": ["mechanism"], "properties": {"mechanism": {"enum": names}}},
        "then": {"propertyNames": {"enum": known}, "properties": own},
    }


def schema_pages() -> dict[Path, str]:
    """The schema, with what is declared brought up to date."""
    schema = json.loads(SCHEMA.read_text())
    kinds = {name: mechanism_named(name) for name, _ in bound_names()}
    run = {name: rule_of(found) for name, found in RUN_PARAMETERS.items()}
    phase = schema["properties"]["phase"]["items"]
    text = "a mechanism, or an algorithm that is a Gaussian mechanism"
    own = {found.key or name: {} for kind in kinds.values() for name, found in parameters_of(kind).items()}
    in_phases = {name: rule for name, rule in run.items() if name not in FOR_ALL or name == "relation"}
    phase["properties"] = {
        **OF_PHASES,
        "mechanism": {"enum": [*kinds, *ALIASES], "description": text},
        **in_phases,
        **own,
    }
    by_hand = [rule for rule in phase["allOf"] if "mechanism" not in rule.get("if", {}).get("properties", {})]
    phase["allOf"] = [*by_hand, *(mechanism_rule(name, kind) for name, kind in kinds.items())]
    schema["properties"] = {**{name: run[name] for name in FOR_ALL}, "phase": schema["properties"]["phase"]}
    drawn = f'"sampling": {{ "enum": {json.dumps([*Sampling, None])} }}'
    results = re.sub(r'"sampling": \{ "enum": .* \}', drawn, RESULTS.read_text())
    of_results = json.loads(results)["properties"]["run"]["properties"]
    fields = [name for name in run if name in Run.__dataclass_fields__ and name not in (*of_results, *NOT_IN_RESULTS)]
    # New fields of a run come before "requirements", the last property; the rest of the file keeps its layout.
    added = "".join(f'        "{name}": {json.dumps(run[name])},\n' for name in fields)
    run_end = results.index('        "requirements"', results.index('"group_size": {'))
    results = results[:run_end] + added + results[run_end:]
    return {SCHEMA: json.dumps(schema, indent=1) + "\n", RESULTS: results}
