"""Replay: events that were, sent again at their own pace to a web server or to a topic."""
