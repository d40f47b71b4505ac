"Every module of this group finds the library's poolings, losses and heads registered, so their names are always taken."
# ruff: noqa: F401
import teran_nb.model.poolings
import teran_nb.model.joint
import teran_nb.model.crossgraph
