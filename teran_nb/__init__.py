__version__ = "0.2.0.dev0"

import os
from importlib import import_module

# OpenMP's threads wait for each other by spinning. Beside other processes, a long spin takes the core from the thread that
# it waits for: with torch's default, training is 12 times slower than with this one (benchmarks/README.md, "Threads").
# OpenMP reads the variable when torch is imported, so it has no effect if torch was imported before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

_SHORT = {
    "load_data": "training.datasets",
    "make_plan": "training.plans",
    "train_run": "training.runs",
    "load_model": "training.runs",
    "evaluate": "measure.evaluation",
    "Collection": "data.collection",
    "register": "core.registry",
    "check": "core.registry",
    "show_grounding": "look.show",
    "show_alignment": "look.show",
    "show_heat": "look.show",
    "view": "look.view",
    "show_receipt": "look.show",
    "Index": "search.index",
    "ask": "search.index",
    "open_models": "search.own_pictures",
}


def __getattr__(name):
    "Import the names that a user types most on first use, so that `import teran_nb` alone stays cheap."
    if name in _SHORT:
        return getattr(import_module(f"teran_nb.{_SHORT[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = list(_SHORT)


def __dir__():
    return [*globals(), *_SHORT]
