"""Plans of runs as facts that are kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bilevel.comparison.profiles import Plan, Profile, Used

Facts = dict[str, str | float]


def written(plan: Plan) -> Facts:
    """As numbers and texts."""
    steps, profile = plan
    facts: Facts = {"steps": steps, "calls": profile.calls, "seconds": profile.seconds, "bytes": profile.bytes}
    if profile.used is None:
        return facts
    columns = {"at": profile.used.steps, "used": profile.used.calls}
    return facts | {n: " ".join(f"{v:.9g}" for v in c) for n, c in columns.items()} | {"besides": profile.used.besides}


def read(facts: Mapping[str, str | float]) -> Plan:
    """What was written."""
    used = None
    if "at" in facts:
        at, calls = (np.array(str(facts[name]).split(), float) for name in ("at", "used"))
        used = Used(at, calls, float(facts["besides"]))
    return Plan(int(facts["steps"]), Profile(float(facts["calls"]), float(facts["seconds"]), int(facts["bytes"]), used))
