"""The board of the registry: rankers and losses side by side, with what an index can serve."""

import numpy as np

from teran_nb.core.show import markdown_table
from teran_nb.measure.results import Result, format_seeds, metric_named
from teran_nb.measure.retrieval import chance_bound
from teran_nb.model.alignment import POOLINGS
from teran_nb.model.heads import HEADS
from teran_nb.training.compare import BOARD_LOSSES, BOARD_RANKERS

_TITLES = {"weighted": "learned weights", "gpo": "GPO", "global": "global vector"}
_HEAD_COSTS = {"global": ("one product","yes, one vector"), "gpo": ("one product","no, its vector is not kept"),
               "weighted": ("engine, two passes","no, learned weights")}


def ranker_cost(
    ranker: str,  # A pooling or a head
) -> tuple[str,str]:  # Such as `engine` or `blocks`; and `yes`, `re-ranks`, or why an index cannot rank by it
    "How a ranker is computed, and what an index can do for it."
    if ranker in _HEAD_COSTS: return _HEAD_COSTS[ranker]
    if ranker in HEADS: return ("every pair","re-ranks") if HEADS[ranker].is_cross_encoder else ("the head","no, a head of its own")
    rule = POOLINGS[ranker]
    if rule.all_images: return "blocks with all images","no, depends on all images"
    index = "yes" if rule.sum_over == ("words",) else "re-ranks"
    if not rule.sum_over: return "blocks",index
    two_passes = len(rule.sum_over) == 2 and (rule.per_word or rule.per_region)
    return "engine, two passes" if two_passes else "engine",index


def _place(name, names): return list(names).index(name) if name in names else len(names)


def _beside_chance(seeds, metric):
    "A metric over the seeds, marked where chance could give its mean."
    values = [measured.metrics[metric] for measured in seeds if metric in measured.metrics]
    could_be_chance = values and np.mean(values) <= chance_bound(seeds[0], metric)
    return format_seeds(values, metric) + (" (chance)" if could_be_chance else "")


def board_table(
    results: Result,  # With the conditions `ranker`, `loss`, `networks` and `seconds`
) -> str:  # Markdown
    "Rankers and losses side by side."
    lines = sorted(results.lines.values(), key=lambda seeds: (_place(seeds[0].about["loss"], BOARD_LOSSES),_place(seeds[0].about["ranker"], BOARD_RANKERS)))
    shown = [m for m in ("t2i_r1","t2i_r10","i2t_r1","i2t_r10","grounding","pairs") if any(m in seeds[0].metrics for seeds in lines)]
    rows = []
    for seeds in lines:
        loss, ranker = seeds[0].about["loss"], seeds[0].about["ranker"]
        title = POOLINGS[ranker].title if ranker in POOLINGS else _TITLES.get(ranker, ranker)
        seconds = np.mean([measured.about["seconds"] for measured in seeds])
        rows.append([loss, title, *(_beside_chance(seeds, m) for m in shown), f"{seconds:.0f}", len(seeds), *ranker_cost(ranker)])
    header = ["loss","ranker",*(metric_named(m).heading for m in shown),"seconds","seeds","computed by","index"]

    def values(name): return ", ".join(dict.fromkeys(str(measured.about.get(name, "-")) for seeds in lines for measured in seeds))
    conditions = (f"{values('protocol')}, {values('candidates')}; data {values('networks')}; {values('epochs')} epochs, seed {values('seed')}, "
                  f"commit {values('commit')}; seconds of training and validation, as they passed")
    return f"{markdown_table(header, rows)}\n\n{conditions}"
