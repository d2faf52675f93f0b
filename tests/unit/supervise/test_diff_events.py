from tocsin.supervise.installed_jobs import Sender

A, B, NONE = frozenset({"a"}), frozenset({"b"}), frozenset[str]()


def times(sender: Sender, found: frozenset[str], first: float, last: float) -> list[float]:
    """When `found` is sent that is seen each second from `first` to `last`."""
    seconds = range(int(first), int(last) + 1)
    return [second for second in seconds if sender.sends(found, second)]


def test_a_new_difference_is_sent_at_once_and_again_ever_more_rarely() -> None:
    assert times(Sender(), A, 0, 300) == [0, 6, 18, 42, 90, 150, 210, 270]


def test_without_a_difference_nothing_is_sent() -> None:
    assert times(Sender(), NONE, 0, 100) == []


def test_another_difference_does_not_wait_so_long_but_never_less_than_three_seconds() -> None:
    sender = Sender()
    assert times(sender, A, 0, 1) == [0]
    assert times(sender, A | B, 1, 5) == [3]


def test_a_difference_that_was_gone_is_new() -> None:
    sender = Sender()
    assert times(sender, A, 0, 60) == [0, 6, 18, 42]
    assert not sender.sends(NONE, 61)
    assert times(sender, A, 62, 70) == [62, 68]
