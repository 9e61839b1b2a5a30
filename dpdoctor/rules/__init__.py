"""One file per rule, listed in `catalog`; `diagnose` asks all of them about every mode."""

from dpdoctor.rules.catalog import BY_NAME, RULES
from dpdoctor.rules.diagnose import diagnose, diagnosed
from dpdoctor.rules.rule import CannotTell, Rule

__all__ = ["BY_NAME", "RULES", "CannotTell", "Rule", "diagnose", "diagnosed"]
