"""Hypothesis profiles; HYPOTHESIS_PROFILE chooses one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A health check fails a test for being slow, or for chance in what it filters, on a busy machine.
settings.register_profile(
    "default", max_examples=150, deadline=None, suppress_health_check=list(HealthCheck)
)
default = settings.get_profile("default")
settings.register_profile("fixed", default, derandomize=True)
settings.register_profile("few", default, max_examples=20, derandomize=True)
settings.register_profile("ci", default, max_examples=150, derandomize=True)
settings.register_profile("long", default, max_examples=2_000)
settings.register_profile("nightly", default, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
