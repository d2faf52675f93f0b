"""Who is given the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from tocsin.declare.setting_blocks import MetricsSettings
from tocsin.web.metrics.exporter import exporter_api


def status(token: str | None, sent: str) -> int:
    """Ask for the figures as the server does."""
    nothing: Any = CollectorRegistry()
    (route,) = [one for one in exporter_api(nothing, token).routes if getattr(one, "path", "") == "/metrics"]
    answer: Response = route.endpoint(authorization=sent)  # type: ignore[attr-defined]
    return answer.status_code


def test_figures_are_given_to_who_sends_the_token() -> None:
    sent = {text: status("secret", text) for text in ("Bearer secret", "Bearer other", "secret", "Bearer sécret", "")}
    assert [text for text, code in sent.items() if code == 200] == ["Bearer secret"]
    assert set(sent.values()) == {200, 401}
    assert status(None, "") == 200


def test_the_exporter_is_not_open_to_others_without_a_token() -> None:
    tls: dict[str, Any] = {"certificate_file": Path("c"), "key_file": Path("k")}
    with pytest.raises(ValidationError, match="needs token_file"):
        MetricsSettings(host="0.0.0.0", **tls)
    assert MetricsSettings(host="0.0.0.0", token_file=Path("t"), **tls).host == "0.0.0.0"
