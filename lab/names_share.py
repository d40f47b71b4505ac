"""How much should names of classes count? `python -m lab.names_share RUN DATA SPLIT` prints the sum of recalls of a model by their share, without a bank."""

import argparse
from dataclasses import replace

import torch

from teran_nb.core.show import markdown_table
from teran_nb.measure.evaluation import evaluate
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import load_model

SHARES = 0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6


def rsum_by_share(run: str, data: str, split: str) -> str:
    "A table with a row for each share; the model is one whose score adds a cosine of whole vectors."
    part = load_data(data).split(split)
    rows = []
    for share in SHARES:
        model = load_model(run)
        model.config = replace(model.config, names_share=share, bank=0)
        model.head().whole_scale = model.config.whole_scale
        rows.append([f"{share:.2f}", f"{100 * evaluate(model, part).metrics['rsum']:.1f}"])
    return markdown_table(["share", "rsum %"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("?")[0])
    for argument in ("run", "data", "split"):
        parser.add_argument(argument)
    torch.set_num_threads(1)
    print(rsum_by_share(**vars(parser.parse_args())))
