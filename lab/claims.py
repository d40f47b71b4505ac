"""What the papers claim about their own models, beside what our numbers say.

python -m lab.claims runs/ablations/ablations.json     prints the claims of a table that a workflow saved
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from teran_nb.core.config import one_of
from teran_nb.core.files import project_path, read_json
from teran_nb.core.show import MarkdownRepr, markdown_table
from teran_nb.measure.results import Result, format_metric, format_seeds, metric_named, paired_bootstrap, read_result, welch
from teran_nb.measure.retrieval import chance_bound
from teran_nb.zoo.papers import PUBLISHED, paper_table, published

from .entries import RunMetrics, checked

_OTHERWISE = {"better": "the other way round", "lower": "the other way round", "little": "the difference is large", "fails": "it loses less than half"}
_DIFFERENCE = {"better": "first - second", "lower": "second - first", "little": "second - 0.9 x first",
               "fails": "0.5 x first - second"}  # Of the means of `Claim.sides`


@dataclass(frozen=True)
class Claim:
    "What a paper says of two of its rows."
    text: str  # In our words
    better: str  # A named recipe
    worse: str  # Another one
    metric: str = "t2i_r1"  # By which they are compared
    _: KW_ONLY
    kind: str = "better"  # `better`, `lower`, `little` or `fails`, as in `_DIFFERENCE`
    against: str = ""  # Another metric of the worse row; the same when empty
    protocol: str = "COCO 1K"  # Under which the paper prints both rows

    def sides(self,
        better: Sequence|np.ndarray,  # Our numbers of the better row: one a seed, or one a query
        worse: Sequence|np.ndarray,  # Of the worse row
    ) -> tuple[np.ndarray,np.ndarray]:
        "Two samples, of which the claim says that the first has the higher mean."
        better, worse = np.asarray(better, dtype=float), np.asarray(worse, dtype=float)
        if self.kind == "fails": return better/2,worse
        if self.kind == "little": return worse,.9*better
        return (worse,better) if self.kind == "lower" else (better,worse)


_FLICKR = "Flickr30k 1K"  # For which IAIS and CGAM print their ablations
CLAIMS = (
    Claim("TERAN finds more images than TERN", "teran-mrsw", "tern"),
    Claim("TERAN finds more sentences than TERN", "teran-mrsw", "tern", "i2t_r1"),
    Claim("TERN's words scored by MrSw fail in sentence retrieval", "tern", "tern-mrsw-test", "i2t_r1", kind="fails"),
    Claim("TERN's words scored by MrSw cost little in image retrieval", "tern", "tern-mrsw-test", kind="little"),
    Claim("TERN's words scored by MwSr cost little", "tern", "tern-mwsr-test", kind="little"),
    Claim("TERN's words scored by MwSr cost little", "tern", "tern-mwsr-test", "i2t_r1", kind="little"),
    Claim("MrSw is better than MwSr", "teran-mrsw", "teran-mwsr"),
    Claim("the symmetric pooling costs little", "teran-mrsw", "teran-symm", kind="little"),
    Claim("averaging over words loses against summing", "teran-mrsw", "teran-mravgw"),
    Claim("shared last layers cost little (MrSw)", "teran-mrsw", "teran-mrsw-shared", kind="little"),
    Claim("shared last layers cost little (MwSr)", "teran-mwsr", "teran-mwsr-shared", kind="little"),
    Claim("leaving out stop-words in training costs a little", "teran-mrsw", "teran-mrsw-stopwords", kind="little"),
    Claim("leaving out stop-words in training costs a little",
          "teran-mrsw", "teran-mrsw-stopwords", "i2t_r1", kind="little"),
    Claim("leaving them out in testing too costs a little", "teran-mrsw", "teran-mrsw-stopwords-test", kind="little"),
    Claim("leaving them out in testing too costs a little",
          "teran-mrsw", "teran-mrsw-stopwords-test", "i2t_r1", kind="little"),
    Claim("BERT (here from scratch) is better than a Bi-LSTM", "teran-mrsw", "teran-mrsw-bilstm"),
    Claim("BERT (here from scratch) is better than a Bi-GRU", "teran-mrsw", "teran-mrsw-bigru"),
    Claim("the alignment loss helps TERN", "tern-align", "tern"),
    Claim("two models are better than one", "teran-mrsw-ens", "teran-mrsw"),
    Claim("TERAN's words find their boxes more often than TERN's", "teran-mrsw", "tern", "grounding"),
    Claim("TERN's words are where chance would put them",
          "tern", "tern", "grounding", kind="little", against="grounding_random"),
    Claim("IAIS (singular) helps the single stream", "iais-singular", "single-stream", "t2i_r1", protocol=_FLICKR),
    Claim("IAIS (singular) helps the single stream", "iais-singular", "single-stream", "i2t_r1", protocol=_FLICKR),
    Claim("IAIS (distributed) helps the single stream",
          "iais-distributed", "single-stream", "t2i_r1", protocol=_FLICKR),
    Claim("IAIS (distributed) helps the single stream",
          "iais-distributed", "single-stream", "i2t_r1", protocol=_FLICKR),
    Claim("IAIS (singular) brings the relations together",
          "iais-singular", "single-stream", "isda", protocol="IAIS Table 2", kind="lower"),
    Claim("IAIS (distributed) brings the relations together", "iais-distributed", "single-stream", "isda",
          protocol="IAIS Table 2", kind="lower"),
    Claim("vision is the better anchor (singular)", "iais-singular-v", "iais-singular-l", protocol=_FLICKR),
    Claim("vision is the better anchor (distributed)", "iais-distributed-v", "iais-distributed-l", protocol=_FLICKR),
    Claim("both anchors are better than one (singular)", "iais-singular", "iais-singular-v", protocol=_FLICKR),
    Claim("both anchors are better than one (distributed)", "iais-distributed", "iais-distributed-v", protocol=_FLICKR),
    Claim("CGAM needs its image side", "cgam", "cgam-no-image", protocol=_FLICKR),
    Claim("CGAM needs its text side", "cgam", "cgam-no-text", protocol=_FLICKR),
    Claim("CGAM needs its cross graph", "cgam", "cgam-no-graph", protocol=_FLICKR),
    Claim("one head costs CGAM little", "cgam", "cgam-one-head", kind="little", protocol=_FLICKR),
    Claim("two CGAMs are better than one", "cgam-ens", "cgam", protocol=_FLICKR),
    Claim("ours: IAIS (singular) helps TERAN", "teran-mrsw-iais-singular", "teran-mrsw", protocol=""),
    Claim("ours: IAIS (distributed) helps TERAN", "teran-mrsw-iais-distributed", "teran-mrsw", protocol=""),
    Claim("ours: IAIS (singular) brings TERAN's relations together",
          "teran-mrsw-iais-singular", "teran-mrsw", "isda_shares", protocol="", kind="lower"),
    Claim("ours: IAIS (distributed) brings TERAN's relations together",
          "teran-mrsw-iais-distributed", "teran-mrsw", "isda_shares", protocol="", kind="lower"),
    Claim("ours: pretraining helps the single stream", "single-stream-pretrained", "single-stream", protocol=""),
    Claim("ours: IAIS (singular) helps the pretrained single stream",
          "iais-singular-pretrained", "single-stream-pretrained", protocol=""),
    Claim("ours: IAIS (distributed) helps the pretrained single stream",
          "iais-distributed-pretrained", "single-stream-pretrained", protocol=""),
    Claim("ours: IAIS (singular) brings the pretrained relations together",
          "iais-singular-pretrained", "single-stream-pretrained", "isda_shares", protocol="", kind="lower"),
    Claim("ours: IAIS (distributed) brings the pretrained relations together",
          "iais-distributed-pretrained", "single-stream-pretrained", "isda_shares", protocol="", kind="lower"))


def claim_interval(
    claim: Claim,  # What the paper says
    better: Sequence,  # Our numbers of the better row, one a seed
    worse: Sequence,  # Of the worse row
    queries: Sequence = (),  # Of both rows, each one number a query; used where a row has one seed
) -> tuple[float,float]|None:  # None with one seed and no queries, or where `welch` has none
    "95 % interval of the difference that a claim says is above 0."
    if min(len(better), len(worse)) > 1: return welch(*claim.sides(better, worse))
    return paired_bootstrap(*claim.sides(*queries)) if len(queries) else None


def verdict(
    claim: Claim,  # What the paper says
    better: Sequence,  # Our numbers of the better row, one a seed
    worse: Sequence,  # Of the worse row
    chance_level: float = -np.inf,  # Every seed of both rows must exceed it; of kind `fails`, of the better row only
    queries: Sequence = (),  # As in `claim_interval`
) -> str:  # `agrees`, `disagrees: ...`, `undecided` or `not learned`
    "Whether our numbers support a claim; decided only where the rows learned and the 95 % interval excludes 0."
    interval = claim_interval(claim, better, worse, queries)
    one_seed = "" if min(len(better), len(worse)) > 1 else " (one seed)"
    above_chance = better if claim.kind == "fails" else [*better,*worse]
    if min(above_chance) <= chance_level: return "not learned" + one_seed
    if interval is None or interval[0] <= 0 <= interval[1]: return "undecided" + one_seed
    return ("agrees" if interval[0] > 0 else f"disagrees: {_OTHERWISE[claim.kind]}") + one_seed


class Finding(NamedTuple):
    "A claim with its published and our numbers."
    claim: Claim  # What the paper says
    published: tuple  # Of the better and the worse row, as `Retrieval.metrics`; None where nothing is printed
    ours: tuple  # Of both rows, each a list with one number a seed
    verdict: str  # Of `verdict`
    interval: tuple|None = None  # Of `claim_interval`


_FOOTNOTE = """Numbers are of the first / second row that the claim compares.
The 95 % interval is that of the difference, and a claim agrees where all of it is above 0.
Welch over seeds; with one seed, a paired bootstrap over queries."""


@dataclass(frozen=True, repr=False)
class Findings(MarkdownRepr):
    "Every claim beside our numbers; shows itself as a table."
    items: tuple  # Each a `Finding`, in the order of the claims

    def _repr_markdown_(self):
        protocols = dict.fromkeys(f.claim.protocol for f in self.items if f.claim.protocol)
        cells = []
        for f in self.items:
            metric = f.claim.metric
            printed = " / ".join(format_metric(value, metric) for value in f.published)
            ours = " / ".join(format_seeds(values, metric) for values in f.ours)
            interval = " to ".join(format_metric(end, metric) for end in f.interval) if f.interval else "-"
            cells.append([f.claim.text, metric_named(metric).heading, printed, ours, _DIFFERENCE[f.claim.kind], interval, f.verdict])
        header = ["claim","metric",", ".join(["published",*protocols]),"ours, scenes","difference","95 % interval","we find"]
        return f"{markdown_table(header, cells)}\n\n{_FOOTNOTE}"


def findings(
    results: Result,  # Of a table
    claims: Iterable[Claim]|None = None,  # What to look at; `CLAIMS` when None
) -> Findings:  # One for each claim whose rows are there
    "What the papers claim beside what we find."
    items = []
    for claim in CLAIMS if claims is None else claims:
        one_of(claim.kind, _DIFFERENCE, "kind of claim")
        sides = (claim.better,claim.metric),(claim.worse,claim.against or claim.metric)
        if any(row not in results.lines for row, _ in sides): continue
        ours = []
        for row, metric in sides:
            values = [r.metrics.get(metric) for r in results.lines[row]]
            ours.append([value for value in values if pd.notna(value)])
        if not all(ours): continue
        printed = tuple(_printed(row, metric, claim.protocol) for row, metric in sides)
        chance_level = chance_bound(results.lines[claim.better][0], claim.metric) if not claim.against else -np.inf
        queries = _answered(results, claim) if min(map(len, ours)) == 1 else ()
        verdict_text = verdict(claim, *ours, chance_level, queries)
        items.append(Finding(claim, printed, tuple(ours), verdict_text, claim_interval(claim, *ours, queries)))
    return Findings(tuple(items))


def _answered(results, claim):
    "Whether the first seed of both rows answered each query; empty where the ranks of its queries are not known."
    recall = re.fullmatch("(t2i|i2t)_r([0-9]+)", claim.metric)
    if recall is None or claim.against: return ()
    answered = []
    for row in (claim.better,claim.worse):
        path = project_path(results.values(row, "run")[0] or ".")/f"metrics-{row}.json"
        ranks = checked(RunMetrics, read_json(path, dict), path).ranks if path.is_file() else {}
        if recall[1] not in ranks: return ()
        answered.append(np.array(ranks[recall[1]]) < int(recall[2]))
    return answered


def _printed(row, metric, protocol):
    "What the papers print for one of our rows; None where they print nothing."
    if row not in PUBLISHED: return None
    if metric == "isda":
        printed, label = paper_table("iais", 2), PUBLISHED[row][1].rstrip("†").casefold()
        return float(printed.isda[printed.model.str.casefold() == label].iloc[0])
    numbers = published(row, protocol)
    return numbers.metrics.get(metric) if numbers else None


if __name__ == "__main__": print(findings(read_result(sys.argv[1]))._repr_markdown_())
