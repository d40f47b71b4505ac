"""The printed table of a board: rankers and losses side by side, with what each ranker costs."""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from teran_nb.core.show import MarkdownRepr, markdown_table
from teran_nb.measure.results import Result, format_seeds, metric_named
from teran_nb.measure.retrieval import chance_bound
from teran_nb.model.alignment import POOLINGS
from teran_nb.model.heads import HEADS
from teran_nb.training.compare import BOARD_LOSSES, BOARD_RANKERS

_TITLES = {"weighted": "learned weights", "gpo": "GPO", "global": "global vector"}
_SHOWN = ("t2i_r1","t2i_r10","i2t_r1","i2t_r10","grounding","pairs")


class RankerCost(NamedTuple):
    "How a ranker is computed, and what an index can do for it."
    computed_by: str  # Such as `engine` or `blocks`
    index: str  # `yes`, `re-ranks`, or why an index cannot rank by it


_HEAD_COSTS = {
    "global": RankerCost("one product", "yes, one vector"),
    "gpo": RankerCost("one product", "no, its vector is not kept"),
    "weighted": RankerCost("engine, two passes", "no, learned weights")}


def ranker_cost(
    ranker: str,  # A name in `POOLINGS` or in `HEADS`
) -> RankerCost:
    "The cost of a ranker."
    if ranker in _HEAD_COSTS: return _HEAD_COSTS[ranker]
    if ranker in HEADS: return RankerCost("every pair", "re-ranks") if HEADS[ranker].is_cross_encoder else RankerCost("the head", "no, a head of its own")
    rule = POOLINGS[ranker]
    if rule.all_images: index = "no, depends on all images"
    else: index = "yes" if rule.sum_over == ("words",) else "re-ranks"
    if not rule.sum_over: return RankerCost("blocks with all images" if rule.all_images else "blocks", index)
    two_passes = len(rule.sum_over) == 2 and (rule.per_word or rule.per_region)
    return RankerCost("engine, two passes" if two_passes else "engine", index)


@dataclass(frozen=True, repr=False)
class Board(MarkdownRepr):
    "Rankers and losses side by side; shows itself as a table."
    results: Result  # Lines with the conditions `ranker` and `loss`

    def _repr_markdown_(self):
        lines = sorted(self.results.lines.values(), key=lambda seeds: _place(seeds[0].about))
        if not lines: return "*no cell of the board is finished*"
        metrics = [metric for metric in _SHOWN if any(metric in seeds[0].metrics for seeds in lines)]
        rows = []
        for seeds in lines:
            about = seeds[0].about
            ranker = about["ranker"]
            title = POOLINGS[ranker].title if ranker in POOLINGS else _TITLES.get(ranker, ranker)
            numbers = [_beside_chance(seeds, metric) for metric in metrics]
            seconds = f"{np.mean([result.about['seconds'] for result in seeds]):.0f}"
            rows.append([about["loss"], title, *numbers, seconds, len(seeds), *ranker_cost(ranker)])
        table = markdown_table(["loss","ranker",*(metric_named(metric).heading for metric in metrics),"seconds","seeds","computed by","index"], rows)
        return f"{table}\n\n{self._conditions(lines)}"

    def _conditions(self, lines):
        "What the cells were measured with, in one line."
        def values(name):
            of_seeds = [str(result.about.get(name, "")) for seeds in lines for result in seeds]
            return ", ".join(dict.fromkeys(of_seeds))
        epochs = values("epochs")
        training = [f"{epochs} epoch" if epochs == "1" else f"{epochs} epochs"] if epochs else []
        training += [f"{name} {values(name)}" for name in ("seed","commit") if values(name)]
        test = filter(None, (values("protocol"), values("candidates")))
        parts = [", ".join(test), f"data {lines[0][0].about['networks']}" if "networks" in lines[0][0].about else "", ", ".join(training)]
        return "; ".join(filter(None, parts)) + "; seconds of training and validation, as they passed"


def _place(about):
    "The order of the table: losses, then rankers; your own come last."
    def place(name, names): return list(names).index(name) if name in names else len(names)
    return place(about["loss"], BOARD_LOSSES), place(about["ranker"], BOARD_RANKERS)


def _beside_chance(seeds, metric):
    "A metric over the seeds, marked where chance could give its mean."
    values = [result.metrics[metric] for result in seeds if metric in result.metrics]
    could_be_chance = values and np.mean(values) <= chance_bound(seeds[0], metric)
    return format_seeds(values, metric) + (" (chance)" if could_be_chance else "")
