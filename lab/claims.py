"""What the papers claim about their own models, beside what our numbers say.

python -m lab.claims runs/ablations/ablations.json     prints the claims of a table that a workflow saved
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import pandas as pd

from teran_nb.core.config import one_of
from teran_nb.core.show import markdown_table
from teran_nb.measure.papers import PUBLISHED, paper_table, published
from teran_nb.measure.results import (
    Result, answered_by_both, format_metric, format_seeds, metric_named, paired_bootstrap, read_result, welch)
from teran_nb.measure.retrieval import chance_bound

_OTHERWISE = {"better": "the other way round", "lower": "the other way round", "little": "the difference is large", "fails": "it loses less than half"}
_DIFFERENCE = {"better": "first - second", "lower": "second - first", "little": "second - 0.9 x first",
               "fails": "0.5 x first - second"}  # A difference of the means of `Claim.sides`


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
        worse: Sequence|np.ndarray,  # Our numbers of the worse row
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
    worse: Sequence,  # Our numbers of the worse row
    queries: Sequence = (),  # Our numbers of both rows, each one number a query; used where a row has one seed
) -> tuple[float,float]|None:  # None with one seed and no queries, or where `welch` has none
    "95 % interval of the difference that a claim says is above 0."
    if min(len(better), len(worse)) > 1: return welch(*claim.sides(better, worse))
    return paired_bootstrap(*claim.sides(*queries)) if len(queries) else None


def verdict(
    claim: Claim,  # What the paper says
    interval: tuple[float,float]|None,  # From `claim_interval`
    better: Sequence,  # Our numbers of the better row, one a seed
    worse: Sequence,  # Our numbers of the worse row
    chance_level: float = -np.inf,  # Every seed of both rows must exceed it; of kind `fails`, of the better row only
) -> str:  # `agrees`, `disagrees: ...`, `undecided` or `not learned`
    "Whether our numbers support a claim; decided only where the rows learned and the 95 % interval excludes 0."
    one_seed = "" if min(len(better), len(worse)) > 1 else " (one seed)"
    above_chance = better if claim.kind == "fails" else [*better,*worse]
    if min(above_chance) <= chance_level: return "not learned" + one_seed
    if interval is None or interval[0] <= 0 <= interval[1]: return "undecided" + one_seed
    return ("agrees" if interval[0] > 0 else f"disagrees: {_OTHERWISE[claim.kind]}") + one_seed


FOOTNOTE = """Numbers are of the first / second row that the claim compares.
The 95 % interval is that of the difference, and a claim agrees where all of it is above 0.
Welch over seeds; with one seed, a paired bootstrap over queries."""


def findings(
    results: Result,  # Our table
    claims: Iterable[Claim] = CLAIMS,  # What to look at
) -> pd.DataFrame:  # A row for each claim whose rows are there, as text
    "What the papers claim beside what we find."
    rows, protocols = [], {}
    for claim in claims:
        one_of(claim.kind, _DIFFERENCE, "kind of claim")
        sides = (claim.better,claim.metric),(claim.worse,claim.against or claim.metric)
        if any(row not in results.lines for row, _ in sides): continue
        ours = [[value for value in results.values(row, metric) if pd.notna(value)] for row, metric in sides]
        if not all(ours): continue
        first, second = results.lines[claim.better][0],results.lines[claim.worse][0]
        chance_level = -np.inf if claim.against else chance_bound(first, claim.metric)
        queries = () if claim.against else answered_by_both(first, second, claim.metric) or ()
        interval = claim_interval(claim, *ours, queries)
        if claim.protocol: protocols[claim.protocol] = None
        def printed(values, metric=claim.metric): return " / ".join(format_metric(value, metric) for value in values)
        rows.append([claim.text, metric_named(claim.metric).heading, printed(_printed(*side, claim.protocol) for side in sides),
                     " / ".join(format_seeds(values, claim.metric) for values in ours), _DIFFERENCE[claim.kind],
                     " to ".join(format_metric(end, claim.metric) for end in interval) if interval else "-",
                     verdict(claim, interval, *ours, chance_level)])
    header = ["claim","metric",", ".join(["published",*protocols]),"ours, scenes","difference","95 % interval","we find"]
    return pd.DataFrame(rows, columns=header)


def as_markdown(
    found: pd.DataFrame,  # From `findings`
) -> str:
    "The table of a document."
    return f"{markdown_table(list(found), found.values)}\n\n{FOOTNOTE}"


def _printed(row, metric, protocol):
    "What the papers print for one of our rows; None where they print nothing."
    if row not in PUBLISHED: return None
    if metric == "isda":
        printed, label = paper_table("iais", 2), PUBLISHED[row][1].rstrip("†").casefold()
        return float(printed.isda[printed.model.str.casefold() == label].iloc[0])
    numbers = published(row, protocol)
    return numbers.metrics.get(metric) if numbers else None


if __name__ == "__main__": print(as_markdown(findings(read_result(sys.argv[1]))))
