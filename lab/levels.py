"""How much should the levels of a bank count? `python -m lab.levels RUN DATA SPLIT THINGS` prints recall and short questions by their weight.

THINGS is a table of things and the words that mention them, such as Flickr8k's absent.tsv. A short question is "a" and one of
these words; an image is a right answer if one of its captions has the word.
"""

import argparse
import csv
import re
from unittest import mock

import numpy as np
import torch

from teran_nb.core.files import project_path
from teran_nb.core.show import markdown_table
from teran_nb.data.collection import Collection
from teran_nb.measure.evaluation import evaluate
from teran_nb.measure.retrieval import ranking
from teran_nb.model import network
from teran_nb.model.encoded import Encoded
from teran_nb.model.encoder import Encoder
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import load_model

WEIGHTS = 0.0, 0.25, 0.5, 0.65, 0.8, 1.0
SHOWN = "t2i_r1", "t2i_r5", "t2i_r10", "i2t_r1", "i2t_r5", "i2t_r10", "rsum"


def short_precision(model: Encoder, images: Encoded, asked: Encoded, part: Collection, words: list[str]) -> float:
    "Share of right answers among the first ten, or among as many as there are; the mean over words that some caption has."
    mentioned = [set(re.findall(r"\w+", " ".join(texts).casefold())) for texts in part.captions.texts_by_image()]
    first = ranking(model.similarity(images, asked).T, 10).tolist()
    shares = []
    for word, rows in zip(words, first):
        right = sum(word in said for said in mentioned)
        if right:
            shares.append(sum(word in mentioned[row] for row in rows) / min(10, right))
    return float(np.mean(shares))


def by_weight(run: str, data: str, split: str, things: str) -> str:
    "A table with a row for each weight, of images and captions alike; image retrieval reads that of images alone, and the other way round."
    part, model = load_data(data).split(split), load_model(run)
    with open(project_path(things), encoding="utf8", newline="") as file:
        words = sorted({word for row in csv.DictReader(file, delimiter="\t") for word in row["words"].split()})
    rows = []
    for weight in WEIGHTS:
        with mock.patch.dict(network._LEVEL_WEIGHTS, images=weight, captions=weight):
            evaluation = evaluate(model, part)
            questions = model.encode_captions([f"a {word}" for word in words])
            short = [short_precision(model, evaluation.images, asked, part, words) for asked in (questions, model.as_queries(questions))]
        rows.append([f"{weight:.2f}", *(f"{100 * number:.1f}" for number in (*map(evaluation.metrics.get, SHOWN), *short))])
    return markdown_table(["weight", *SHOWN, "short, by similarity", "short, as asked"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("?")[0])
    for argument in ("run", "data", "split", "things"):
        parser.add_argument(argument)
    torch.set_num_threads(1)
    print(by_weight(**vars(parser.parse_args())))
