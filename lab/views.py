"""What do other views of a picture bring? `python -m lab.views RUN DATA SPLIT` prints recall by the views that a model reads.

DATA has all views that are compared; `prepare` makes it with `extractor_settings: {other_sizes: [416], mirrored: true}`.
"""

import argparse
import re
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from teran_nb.core.show import markdown_table
from teran_nb.data.collection import Image
from teran_nb.data.features import Features
from teran_nb.measure.retrieval import retrieval
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import load_model

SHOWN = "t2i_r1", "t2i_r5", "t2i_r10", "i2t_r1", "i2t_r5", "i2t_r10", "rsum"


def views_in(store: Features) -> list[tuple[int, bool]]:
    "Pixels of the input of each view, and whether it is the mirrored one, in the order of the store."
    settings = store.extraction["spec"][1]
    first = int(re.search(r"size=(\d+)", store.extractor)[1])
    ways = (False, True) if settings["mirrored"] else (False,)
    return list(product((first, *settings["other_sizes"]), ways))


def with_views(image: Image, chosen: list[int]) -> Image:
    "An image of which a model reads these views only."
    views = image.regions.all_views()
    first, *others = (views[k].features for k in chosen)
    stacked = np.stack(others, 1) if others else None
    return Image(image.id, replace(image.regions, features=first, views=stacked), image.path)


def by_views(run: str, data: str, split: str) -> str:
    "A table with a row for each input, plain and with its mirrored view, and for all inputs."
    part, model = load_data(data).split(split), load_model(run)
    views = views_in(part.features)
    sizes = list(dict.fromkeys(size for size, _ in views))
    groups = [[size] for size in sizes] + ([sizes] if len(sizes) > 1 else [])
    mirrored_too = sorted({mirrored for _, mirrored in views})
    captions = model.encode_captions(part)
    rows = []
    for group, mirrored in product(groups, mirrored_too):
        chosen = [k for k, (size, is_mirrored) in enumerate(views) if size in group and is_mirrored <= mirrored]
        images = model.encode_images([with_views(image, chosen) for image in part])
        metrics = retrieval(model.similarity(images, captions), part.captions.image_of)
        name = " and ".join(map(str, group)) + (", mirrored too" if mirrored else "")
        rows.append([name, *(f"{100 * metrics[metric]:.1f}" for metric in SHOWN)])
    return markdown_table(["pixels", *SHOWN], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("?")[0])
    for argument in ("run", "data", "split"):
        parser.add_argument(argument)
    torch.set_num_threads(1)
    print(by_views(**vars(parser.parse_args())))
