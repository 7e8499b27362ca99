"""Loading what was compiled: an extension that cannot be used is a reason, never a crash."""

from __future__ import annotations

from importlib import import_module


def load_extension(name: str, layout: object) -> str:
    """Why it cannot be used; "" where it is loaded and can be imported.

    `layout`: what the module's LAYOUT must be; it says what the C was compiled with.
    """
    try:
        module = import_module(name)
    except ModuleNotFoundError:
        return "it was not built: there was no C compiler, or no Python.h, at installation"
    except ImportError as error:  # built for another libc, cut off, not readable
        return f"it does not load ({str(error).rpartition('/')[2]})"  # without our folders
    if getattr(module, "LAYOUT", None) != layout:
        return "it was built from other sources than these; run `make setup` again"
    return ""
