"""What a scrape gives, by name and labels."""

from collections.abc import Iterable

from prometheus_client.core import Metric

Labels = frozenset[tuple[str, str]]


class Served:
    """The samples of families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = list(families)
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Figures by the value of a label that tells them apart."""
        return {dict(labels)[label]: value for (known, labels), value in self.samples.items() if known == name}

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}
