"""A kind of import-linter contract: a list of what modules may import, standard library aside.

import-linter's own kinds list what is forbidden, so a new dependency would pass until somebody remembers to add it.
"""

import sys

import grimp
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """The modules, and all inside them, import nothing but the standard library and what is allowed.

    Options:
        modules: modules or packages; names that do not exist yet are allowed.
        allowed: modules and packages (ours or third parties') that they may import.
    """

    type_name = "only"

    modules = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        del verbose
        modules, allowed = self._names("modules"), self._names("allowed")
        inside = [name for name in graph.modules if _within(name, modules)]
        wrong = {
            f"{name} imports {imported}"
            for name in inside
            for imported in graph.find_modules_directly_imported_by(name)
            if imported.partition(".")[0] not in sys.stdlib_module_names and not _within(imported, [*modules, *allowed])
        }
        return ContractCheck(kept=not wrong, metadata={"wrong": sorted(wrong)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for sentence in check.metadata["wrong"]:
            output.print_error(f"- {sentence}")

    def _names(self, option: str) -> list[str]:
        """The value of an option; the class declares its field, the object holds its value."""
        names: list[str] = getattr(self, option)
        return names


def _within(name: str, packages: list[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
