__version__ = "0.1.0"

from teran_nb.core.help import show_docments

show_docments()


def __getattr__(name):
    "Import `load_model` on first use, so that `import teran_nb` alone stays cheap."
    if name == "load_model":
        from teran_nb.experiment.runs import load_model
        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__(): return [*globals(), "load_model"]
