"""Hypothesis profiles; HYPOTHESIS_PROFILE chooses one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", max_examples=150, deadline=None)
settings.register_profile("ci", max_examples=300, deadline=None, derandomize=True)
for name, examples in (("long", 2_000), ("nightly", 20_000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck)
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
