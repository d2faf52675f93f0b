"""Commands that are rare on their host (somebody who looks around, a tool that was brought along).

Catches: a command that makes less than one in 64 of all on this host, by Laplace's rule of succession.
Misses: the first commands of a host, and tools under the name of a usual command.
When it fires, look first at: who ran it, and what else that person ran.
"""

from dataclasses import dataclass

from tocsin import Case, Event, Levels, StepFinding, at, detector, email, urgent
from tocsin.stats import Values, entropy


@dataclass(frozen=True)
class Seen:
    commands: Values = Values()


@detector(source="commands", entity="host", window=None, forget_after="30 days", levels=Levels(email=6, urgent=8),
          owner="security@example.com", runbook="docs/runbooks/rare_command.md", stage="live")  # fmt: skip
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    rarity = state.commands.rarity(event.command)
    facts = {"command": event.command, "entropy_of_name": round(entropy(event.command or ""), 1)}
    return Seen(state.commands.add(event.command)), [StepFinding(rarity, facts)]


USUAL = at("12:00:00", team="web", host="web.1", command="systemctl")
RARE = at("12:30:00", team="web", host="web.1", command="nc")
CASES = [
    Case("one of 64", events=USUAL.repeat(62, every="1 second").then(RARE), expect=[]),
    Case("one of 65", events=USUAL.repeat(63, every="1 second").then(RARE), expect=[email(host="web.1")]),
    Case("one of 256", events=USUAL.repeat(254, every="1 second").then(RARE), expect=[email(host="web.1", score=8)]),
    Case("one of 257", events=USUAL.repeat(255, every="1 second").then(RARE), expect=[urgent(host="web.1")]),
    Case(
        "a second time, and without a command",
        events=USUAL.repeat(63, every="1 second")
        .then(RARE)
        .then(after="1 second")
        .then(after="1 second", command=None),
        expect=[email(host="web.1", window="12:30:00")],
    ),
]
