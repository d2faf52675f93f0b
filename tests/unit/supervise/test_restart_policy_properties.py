"""Whatever happens, in whatever order: the rules that hold at every step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.supervise.world import FOREVER, Nature, World
from tocsin.supervise.job_states import UNREADABLE, Desired, Start, Stop, Timing

JOBS = ("ingest:a", "detector:b", "notifier")
PACE = Timing(stagger=3.0)
natures = st.builds(
    Nature,
    lives=st.sampled_from([0.5, 3.0, 40.0, 150.0, FOREVER]),
    code=st.sampled_from([0, 1, 2, 3, 4, -9]),
    obeys_after=st.sampled_from([0.5, 10.0, FOREVER]),
    beats=st.booleans(),
    ready_after=st.sampled_from([1.0, 30.0, FOREVER]),
)
wishes = st.one_of(
    st.none(),
    st.just(UNREADABLE),
    st.builds(Desired, spec=st.sampled_from(["v1", "v2", "v3"]), heavy=st.booleans(), hands_over=st.booleans()),
)


class Supervision(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World({}, timing=PACE)

    @rule(job=st.sampled_from(JOBS), wish=wishes)
    @precondition(lambda self: self.world.desired is not None)
    def wish(self, job: str, wish: Desired | None) -> None:
        rest = {name: one for name, one in (self.world.desired or {}).items() if name != job}
        self.world.desired = rest if wish is None else {**rest, job: wish}

    @rule(job=st.sampled_from(JOBS), nature=natures)
    def behave(self, job: str, nature: Nature) -> None:
        self.world.natures[job] = nature

    @rule(job=st.sampled_from(JOBS), leader=st.booleans())
    def appear(self, job: str, leader: bool) -> None:
        self.world.add(job, "v1", leader=leader)

    @rule(job=st.sampled_from(JOBS))
    def crash(self, job: str) -> None:
        for one in self.world.running(job):
            self.world.ends[one.pid] = (self.world.now, -9)

    @rule(seconds=st.integers(1, 90))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self._tick()

    @rule()
    def desired_state_is_lost_for_a_while(self) -> None:
        kept, self.world.desired = self.world.desired, None
        assert self.world.tick() == []
        self.world.desired = kept

    @invariant()
    def everything_asked_to_stop_is_alive(self) -> None:
        for job, past in self.world.history.jobs.items():
            assert set(past.asked) <= {action.pid for action in self.world.stops(job)}

    def teardown(self) -> None:
        """Left in peace with well-behaved processes, the machine comes to exactly what is desired."""
        for job in JOBS:
            self.world.natures[job] = Nature()
        for one in self.world.live.values():
            self.world.ends[one.pid] = (FOREVER, 1)
        for _ in range(200):
            self._tick()
        for job in JOBS:
            wanted = (self.world.desired or {}).get(job)
            if wanted is None:
                assert not self.world.running(job)
            elif wanted.readable:
                assert [one.spec for one in self.world.running(job)] == [wanted.spec]

    def _tick(self) -> None:
        desired = self.world.desired or {}
        heavy_before = self.world.history.heavy_start_at
        before = {job: len(self.world.running(job)) for job in JOBS}
        actions = self.world.tick()
        for action in actions:
            wanted = desired.get(action.job)
            if isinstance(action, Start):
                assert wanted is not None
                assert wanted.readable
                assert action.spec == wanted.spec
                specs = [one.spec for one in self.world.running(action.job)]
                assert len(specs) == len(set(specs)) <= 2, "two copies"
                assert len(specs) == (2 if action.beside else 1)
                assert wanted.hands_over or not action.beside
                if wanted.heavy:
                    assert self.world.now - heavy_before >= PACE.stagger
            if isinstance(action, Stop):
                assert wanted is None or wanted.readable
                assert before[action.job] > 0
        assert len({action.job for action in actions if isinstance(action, Start) and desired[action.job].heavy}) <= 1


TestSupervision = Supervision.TestCase
TestSupervision.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
