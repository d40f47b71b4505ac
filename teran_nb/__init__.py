__version__ = "0.2.0"

import os
from importlib import import_module

# OpenMP's threads wait for each other by spinning. Beside other processes, a long spin takes the core from the thread that
# it waits for: with torch's default, training is 12 times slower than with this one (benchmarks/README.md, "Threads").
# OpenMP reads the variable when torch is imported, so it has no effect if torch was imported before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# What a user types most, for completion; every other public function and class can be imported from here too.
__all__ = [
    "load_data", "recipe", "train", "Run", "load_model", "evaluate", "compare", "Collection", "Index",
    "register", "check", "show_grounding", "show_alignment", "show_heat", "view", "show_receipt",
]


def __getattr__(name):
    "Import a public function or class from its module on first use, so that `import teran_nb` alone stays cheap."
    if not name.startswith("_"):
        from teran_nb._modidx import d

        found = []
        for module, names in d["syms"].items(): # methods of a class may stand on several pages
            if any(f"{each}.".startswith(f"{module}.{name}.") for each in names):
                found.append(getattr(import_module(module), name))
        if found:
            return found[0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *__all__]
