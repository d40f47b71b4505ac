"Every module of this group finds the library's poolings, losses and heads registered, and a network that can be saved."
# ruff: noqa: F401
import teran_nb.model.poolings
import teran_nb.model.saving
