"""One file per rule; its name is the rule's, and nothing else is edited for a new one."""

from dpdoctor.rules._base import Case, Rule
from dpdoctor.rules._diagnose import diagnose, rules

__all__ = ["Case", "Rule", "diagnose", "rules"]
