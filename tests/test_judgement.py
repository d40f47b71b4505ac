"""Agreement with people on Flickr8k's ratings, where they are at hand, and COCO's judgements beside the package that carries them."""
import json
import os

import numpy as np
import pytest
import torch
from conftest import SHARED, play

from teran_nb.data.caption_files import read_captions
from teran_nb.measure.judgement import judge, read_judgements, rouge_of, spice_of
from teran_nb.measure.relevance import rouge_l
from teran_nb.measure.retrieval import coco_judgements, ranking, retrieval
from teran_nb.measure.spice import find_spice_program, parse_tuples
from teran_nb.training.datasets import load_data

FLICKR8K = SHARED / "data" / "flickr8k"
COCO = SHARED / "data" / "captions" / "coco_testall_caps.txt.gz"
IMAGE_OF = np.arange(25_000) // 5


@pytest.fixture(scope="module")
def rated():
    "The ratings of experts and of the crowd."
    if not FLICKR8K.is_dir():
        pytest.skip(f"published agreement is repeated where {FLICKR8K} is")
    captions = read_captions(FLICKR8K / "dataset_flickr8k.json").split("test")
    return read_judgements([FLICKR8K / name for name in ("expert_judgements.tsv", "crowd_judgements.tsv.gz")], captions)


def test_the_protocol_of_clipscore(rated):
    "5,664 of the experts' pairs, all of the crowd's, and references without what is rated."
    expert, crowd = rated
    assert (expert.name, expert.ratings.shape, crowd.name, crowd.ratings.shape) == ("expert", (5664, 3), "crowd", (47_830, 1))
    assert {len(texts) for texts in expert.references.values()} == {5} and sum(5 - len(texts) for texts in crowd.references.values()) == 723
    def n_referred(one):
        return sum(text in one.references[image] for image, text in zip(one.image_ids, one.sentences))

    assert (n_referred(expert), n_referred(crowd)) == (0, 1)  # one photograph has one caption twice


def test_rouge_l_agrees_as_published(rated):
    "CLIPScore prints 32.3 and 19.9."
    metrics = judge(rouge_of, rated).metrics
    assert abs(metrics["expert_tau_c"] - .323) < .005 and abs(metrics["crowd_tau_b"] - .199) < .005


@pytest.mark.slow
def test_spice_agrees_as_published(rated, tmp_path, monkeypatch):
    "CLIPScore prints 44.9 for the experts. Java parses 6,000 sentences, which takes minutes."
    if "TERAN_NB_SPICE" not in os.environ and (SHARED / "spice" / "jars").is_dir():
        monkeypatch.setenv("TERAN_NB_SPICE", str(SHARED / "spice" / "jars"))
    try:
        find_spice_program()
    except FileNotFoundError as e:
        pytest.skip(f"{str(e).partition(', not found here')[0]}; find_spice_program() prints the commands that get it")
    expert = rated[0]
    tuples = parse_tuples([*expert.sentences, *expert.references.values()], tmp_path, processes=2)
    assert abs(judge(spice_of(tuples), expert).metrics["expert_tau_c"] - .449) < .005


def test_evaluate_judges_a_model(trained, tmp_path):
    "The workflow takes files of ratings, shows where people and model differ, and saves the numbers."
    test = load_data("scenes:tiny").test
    rows = ["image,sentence,rating"]
    for i, (image_id, own) in enumerate(zip(test.image_ids, test.captions.texts_by_image())):
        other = test.captions.texts[(int(test.captions.rows_of(i)[0]) + 7) % len(test.captions)]
        rows += [f'{image_id},"{own[0]}",4', f'{image_id},"{other}",1']
    (tmp_path / "people.csv").write_text("\n".join(rows))
    done = play("evaluate", run=str(trained), output=str(tmp_path / "ev"),
                options={"pairs": "", "judgements": [str(tmp_path / "people.csv")]})
    tau = done["agreement_with_people"].metrics["people_tau_c"]
    assert -1 < tau < 1 and any(hasattr(each, "to_html") and each.to_html().count("<img") == 6 for each in done["shown"])
    saved = json.loads((tmp_path / "ev" / "results.json").read_text(encoding="utf8"))["lines"]
    assert any(seed["metrics"].get("people_tau_c") == tau for seeds in saved.values() for seed in seeds)


@pytest.fixture(scope="module")
def judged():
    "What people judged of COCO's test split."
    pytest.importorskip("eccv_caption", reason="COCO's judgements are in eccv_caption: pip install eccv_caption==0.1.0")
    return coco_judgements()


def of_package(sim):
    "The package's own numbers of a similarity matrix, by our names."
    from eccv_caption import Metrics

    metrics = Metrics()
    captions = metrics.coco_ids.tolist()
    images = [metrics.coco_gts["t2i"][caption][0] for caption in captions[::5]]
    t2i = {caption: [images[i] for i in row] for caption, row in zip(captions, ranking(sim.T, 50).tolist())}
    i2t = {image: [captions[i] for i in row] for image, row in zip(images, ranking(sim, 50).tolist())}
    wanted = ("eccv_r1", "eccv_map_at_r", "eccv_rprecision", "coco_5k_recalls", "cxc_recalls")
    scores = metrics.compute_all_metrics(i2t, t2i, target_metrics=wanted, Ks=(1, 5, 10))
    return {f"{direction}_{name.removeprefix('coco_5k_')}": value for name, by in scores.items() for direction, value in by.items()}


def test_an_oracle_and_chance(judged):
    "An oracle reaches 100 %, but for two captions that ECCV names and the split lacks; random ranks nearly nothing; both as the package counts."
    sim = torch.zeros(5000, 25_000)
    for image, captions in judged["eccv"]["i2t"].items():
        sim[image, [c for c in captions if c >= 0]] = 1
    for caption, images in judged["eccv"]["t2i"].items():
        sim[images, caption] = 1
    oracle = retrieval(sim, IMAGE_OF, "ECCV Caption").metrics
    assert oracle["t2i_eccv_map_at_r"] == oracle["eccv_r1"] == 1 and .9998 < oracle["i2t_eccv_map_at_r"] < 1
    sim = torch.rand(5000, 25_000, generator=torch.Generator().manual_seed(0))
    chance = retrieval(sim, IMAGE_OF, "ECCV Caption").metrics
    assert max(chance[name] for name in ("eccv_map_at_r", "eccv_rprecision", "eccv_r1", "cxc_r1")) < .004
    for name, value in of_package(sim).items():
        assert chance[name] == pytest.approx(value, abs=1e-12), name


def test_captions_in_another_order_are_refused():
    with pytest.raises(ValueError, match="ECCV Caption needs COCO's 5K test split in its own order"):
        retrieval(torch.zeros(5000, 5000), np.arange(5000), "ECCV Caption")


@pytest.mark.slow
def test_ranks_by_rouge_l(judged, tmp_path):
    "ROUGE-L between COCO's 25,000 captions finds each caption's own image, and half of what people found beside it; as the package counts."
    if not COCO.is_file():
        pytest.skip(f"COCO's captions are ranked by ROUGE-L where {COCO} is")
    sim = torch.from_numpy(np.array(rouge_l(read_captions(COCO), tmp_path).values.T))
    metrics = retrieval(sim, IMAGE_OF, "ECCV Caption").metrics
    assert metrics["t2i_r1"] > .99
    for name, value in of_package(sim).items():
        assert metrics[name] == pytest.approx(value, abs=1e-12), name
