"""A report without names: hosts, users, paths and addresses give way to stable pseudonyms.

The key stays in the incident folder of the owner, who alone can turn a pseudonym back.
"""

from dataclasses import replace

from eroica.columns import RankPatterns
from eroica.explain.privacy import Pseudonyms
from eroica.incident import IncidentFolder
from eroica.report.material import Material


def anonymized(folder: IncidentFolder, material: Material) -> Material:
    """Return the material with every text pseudonymized; the key is kept in the folder (0600)."""
    names = Pseudonyms.of(folder, material.incident, material.evidence)
    names.know_hosts(one.host for one in material.patterns)

    hide = names.hide_record
    result = Material(
        incident=hide(material.incident),
        evidence=hide(material.evidence) if material.evidence else None,
        diagnoses=tuple(hide(one) for one in material.diagnoses),
        patches=tuple(hide(one) for one in material.patches),
        decisions=tuple(hide(one) for one in material.decisions),
        patterns=tuple(_patterns(one, names) for one in material.patterns),
        lost=tuple(names.hide(text) for text in material.lost),
    )
    names.save(folder)
    return result


def _patterns(one: RankPatterns, names: Pseudonyms) -> RankPatterns:
    return replace(one, host=names.hide(one.host), functions=names.hide_record(one.functions))
