"""Compiled programs kept from one process to the next."""

from __future__ import annotations

import os
from pathlib import Path


def keep_compiled() -> None:
    """Has JAX keep what it compiles in the user's cache, unless they told it where; for commands, not for libraries."""
    import jax

    if jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(base / "bilevel" / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
