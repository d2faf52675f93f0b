"""A detector that calls a window complete too early: an e-mail may say too little, and nobody goes without one."""

from __future__ import annotations

from tests.unit.alerts.scene import NOON, WINDOW
from tests.unit.alerts.test_notifier import OWNER, Scene, picture, scene, server

__all__ = ["picture", "scene", "server"]


def test_a_window_that_was_called_complete_too_early_costs_no_notification_and_none_comes_twice(scene: Scene) -> None:
    scene.index(60)
    scene.close_windows(NOON + WINDOW, "complete_through")
    scene.send()
    for score, user in ((90, "mallory"), (70, "eve"), (120, "mallory")):
        scene.index(score, user=user)
        scene.send()
    scene.close_windows(NOON + 2 * WINDOW)
    scene.send()
    told = [subject.partition(" (")[0].rstrip("+") for to, subject in scene.subjects if to == OWNER]
    assert told == ["mallory: 60", "eve: 70", "[URGENT] mallory: 120"]
