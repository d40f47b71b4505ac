"""The research tooling in `lab/`: claims, and the published training code beside recorded outputs of it."""
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import SHARED, toy_result
from torch import nn

from lab import levels, names_share, views
from lab.claims import CLAIMS, Claim, as_markdown, claim_interval, findings, verdict
from lab.entries import data_fingerprint
from lab.published_training import reference_batch, reference_losses, reference_optimizer, reference_outputs
from teran_nb.core.processes import seed_everything
from teran_nb.data.features import Regions
from teran_nb.data.words import STOP_WORDS
from teran_nb.measure.evaluation import evaluate
from teran_nb.measure.results import Result
from teran_nb.model.regions import RegionConfig, StackConfig, region_batch
from teran_nb.model.text import TextConfig, text_encoder
from teran_nb.photos.prepare import Sources, prepare
from teran_nb.training.datasets import load_data
from teran_nb.training.learner import _optimizer_of
from teran_nb.training.recipe import TrainConfig, recipe_names
from teran_nb.training.runs import load_model
from teran_nb.zoo.originals import load_original, original_names
from teran_nb.zoo.published_code import REFERENCE_POOLINGS, Reference, reference_triplet
from teran_nb.zoo.published_network import MEASURES, PublishedConfig, PublishedNetwork, Variant

BETTER, LITTLE, FAILS = (next(claim for claim in CLAIMS if claim.kind == kind) for kind in ("better", "little", "fails"))


# claims

def test_claims_are_of_rows():
    assert {row for claim in CLAIMS for row in (claim.better, claim.worse)} <= set(recipe_names())
    assert [side.tolist() for side in LITTLE.sides([.6], [.5])] == [[.5], [.9 * .6]]
    with pytest.raises(ValueError, match="unknown kind of claim 'equal'; known are better, lower, little, fails"):
        findings(Result({}), [Claim("", "teran-mrsw", "tern", kind="equal")])


@pytest.mark.parametrize("claim, better, worse, expected", [
    (BETTER, [.5, .52], [.1, .12], "agrees"),
    (BETTER, [.5, .51], [.6, .61], "disagrees: the other way round"),
    (BETTER, [.5, .3], [.1, .2], "undecided"),  # 0.25 +- 0.8: two seeds that scatter so much decide nothing
    (BETTER, [.5, .5], [.4, .4], "undecided"),  # two seeds that agree may be one model tested twice
    (BETTER, [.5, .5, .5], [.4, .4, .41], "agrees"),  # one row that scatters gives an interval
    (BETTER, [.5], [.1], "undecided (one seed)"),
    (LITTLE, [.5, .52], [.4, .4], "undecided"),  # 0.4 against 0.9 * 0.51 = 0.459, and one degree of freedom
    (LITTLE, [.5, .52, .51], [.4, .4, .41], "disagrees: the difference is large"),
    (LITTLE, [.5, .51, .5], [.5, .5, .51], "agrees"),
    (FAILS, [.1, .11, .1], [.07, .08, .08], "disagrees: it loses less than half"),
    (FAILS, [.5, .51, .5], [.1, .1, .11], "agrees"),
])
def test_verdicts(claim, better, worse, expected):
    assert verdict(claim, claim_interval(claim, better, worse), better, worse) == expected


def test_one_seed_is_decided_by_its_queries():
    first = np.arange(100) < 50
    by_query = claim_interval(BETTER, [.5], [.1], (first, np.arange(100) < 10))
    assert verdict(BETTER, by_query, [.5], [.1]) == "agrees (one seed)"
    by_query = claim_interval(BETTER, [.5], [.49], (first, np.arange(100) % 2))
    assert verdict(BETTER, by_query, [.5], [.49]) == "undecided (one seed)"
    assert claim_interval(BETTER, [.5], [.1]) is None
    assert verdict(BETTER, claim_interval(BETTER, [.5, .52], [.1, .12]), [.5, .52], [.1, .12], chance_level=.2) == "not learned"


def test_findings_of_a_table():
    "Numbers of the papers beside ours; with one seed the ranks of a run decide."
    def lines(*recalls, **about):
        return {row: tuple(replace(r, about=r.about | {"model": row} | about) for r in toy_result(*values).lines["teran-mrsw"]) for row, values in
                zip(("teran-mrsw", "tern"), recalls)}
    table = findings(Result(lines([.5, .52], [.2, .22])))
    first = table.iloc[0]
    assert (first.claim, first["we find"], first["published, COCO 1K"]) == ("TERAN finds more images than TERN", "agrees", "65.0 / 51.9")
    text = " ".join(as_markdown(table).split())
    assert "| TERAN finds more images than TERN |" in text and "65.0 / 51.9" in text
    ranked = {row: {"t2i": [0 if i % share == 0 else 3 for i in range(100)]} for row, share in (("teran-mrsw", 2), ("tern", 10))}
    one_seed = {row: (replace(measured[0], ranks=ranked[row]),) for row, measured in lines([.5], [.2]).items()}
    assert findings(Result(one_seed))["we find"][0] == "agrees (one seed)"
    assert first["ours, scenes"] == "51.0 ± 1.4 / 21.0 ± 1.4" and "51.0 ± 1.4 / 21.0 ± 1.4" in text
    assert not table.metric.str.contains("ISDa").any()


# the published training code

GOLDEN = SHARED / "golden"
THEIRS = {"mrsw": "MrSw", "mwsr": "MwSr", "mravgw": "MrAVGw"}


def toy_network(**changes):
    "A small model, and a batch of three images with 6, 6 and 4 regions, padded to 7 slots, and a caption of each."
    small = TextConfig(dim=16, heads=4, feed_forward=32, layers=2)
    texts = ["a red kite above the small house", "two kittens", "a boat at night"]
    seed_everything(7)
    config = PublishedConfig(text=small, dim=8, last=StackConfig(1), regions=RegionConfig(12, stack=StackConfig(1)))
    model = PublishedNetwork(replace(config, **changes), text_encoder(small, texts*2)).eval()
    features, boxes = torch.zeros(3, 7, 12), torch.zeros(3, 7, 4)
    for i, count in enumerate((6, 6, 4)):
        features[i, 1:count+1] = torch.randn(count, 12)
        boxes[i, 1:count+1] = torch.rand(count, 2, 2).sort(1).values.flatten(1)
    tokens = model.text.tokenize(texts).padded()
    return model, features, boxes, tokens, reference_batch(features, boxes, [7, 7, 5], tokens.ids, tokens.mask.sum(1))


def test_a_published_batch_is_one_of_ours():
    model, features, boxes, tokens, (images, captions) = toy_network()
    assert torch.equal(captions.word_mask, tokens.word_mask) and images.mask.sum(1).tolist() == [6, 6, 4]
    with pytest.raises(ValueError, match="slot 0 of a published batch is I-CLS"):
        reference_batch(features+1, boxes, [7, 7, 5], tokens.ids, [9, 4, 6])
    outputs = reference_outputs(model, images, captions)
    assert (outputs["img_feats"].shape, outputs["cap_lengths"]) == ((7, 3, 8), [9, 4, 6])
    torch.testing.assert_close(outputs["img_emb_aggr"], model(images, captions)[0].whole)
    losses = reference_losses(model, *model(images, captions))
    assert set(losses) == {"alignment-loss"}
    sum(losses.values()).backward()
    reference_optimizer(model).step()


def test_two_objectives_and_a_frozen_text():
    both, *_, batch = toy_network(training_heads=("alignment", "global"), variant=Variant(measure="order"), reference=Reference("teran", tuple(sorted(STOP_WORDS))))
    assert reference_outputs(both, *batch)["cap_lengths"] == [6, 4, 4] and (both(*batch)[0].whole >= 0).all()
    assert set(reference_losses(both, *both(*batch))) == {"alignment-loss", "matching-loss"}
    model, *_ = toy_network()
    frozen = PublishedNetwork(replace(model.config, text=replace(model.config.text, thaw=0)), model.text)
    embeddings = frozen.text.network.bert.embeddings.word_embeddings.weight
    trained = reference_optimizer(frozen).param_groups[0]["params"]
    assert embeddings.requires_grad and not any(p is embeddings for p in trained)  # it gets gradients, but the optimizer does not move it
    deep, *_ = toy_network(variant=Variant(text_layers=1))
    deep = PublishedNetwork(replace(deep.config, text=replace(deep.config.text, thaw=0)), deep.text)
    moved = {name for name, p in deep.named_parameters() if any(p is q for q in reference_optimizer(deep).param_groups[0]["params"])}
    assert moved == {name for name, _ in deep.named_parameters() if not name.startswith(("text.", "relate_words."))} and "project_words.weight" in moved
    ours = _optimizer_of(deep, TrainConfig(), unmoved=deep.unmoved_parts).param_groups[0]["params"]
    assert {id(p) for p in ours} == {id(p) for p in reference_optimizer(deep).param_groups[0]["params"]}


def given(name): return torch.load(GOLDEN/name, weights_only=True)


def off(got, want):
    "Largest difference, relative to the largest expected value."
    got, want = (torch.as_tensor(x, dtype=torch.float32).detach() for x in (got, want))
    return float((got-want).abs().max()/want.abs().max().clamp(min=1e-12))


def compare_vectors(recorded, model, batch):
    "Whole vectors and padded parts."
    outputs = reference_outputs(model, *batch)
    named = {name.split()[0]: want for name, want in recorded["outputs"].items()}
    return max(off(outputs[name], want) for name, want in named.items() if name in outputs)


def compare_scores(recorded, model, images, captions):
    "Similarities and losses; a TERN checkpoint has one of each."
    expected = recorded["similarity (images x captions)"]
    losses = reference_losses(model, images, captions)
    if "alignment_loss" not in recorded:
        return max(off(model.similarity(images, captions), expected), off(sum(losses.values()), recorded["configured_loss"]))
    sims = {THEIRS.get(p, p): model.similarity(images, captions, pooling=p) for p in REFERENCE_POOLINGS}
    worst = [off(sims[pooling], want) for pooling, want in expected.items()]
    worst += [off(loss, recorded["configured_loss"][name]) for name, loss in losses.items()]
    for name, want in recorded["alignment_loss"].items():
        worst.append(off(reference_triplet(sims[name.split("/")[0]], .2, name.endswith("True")), want))
    for name, want in recorded["matching_loss"].items():
        sim = MEASURES[name.split("/")[0]](images.whole, captions.whole)
        worst.append(off(reference_triplet(sim, .2, name.endswith("True")), want))
    return max(worst)


def compare_gradients(recorded, model):
    "Norms, relative to themselves or to a hundredth of the total; a missing gradient must be missing in both."
    names = original_names(model)
    norms = {names[k]: None if p.grad is None else p.grad.norm() for k, p in model.named_parameters()}
    worst = 0
    for name, want in recorded["grad_norms"].items():
        assert (want is None) == (norms.get(name) is None), name
        if want is not None:
            worst = max(worst, float((norms[name]-want).abs()/max(want, 1e-2*recorded["grad_total_norm"])))
    return worst


def compare_steps(recorded, model, batch):
    "Losses and gradient norms of the first steps of Adam."
    steps = recorded["adam_steps"]
    optimizer = reference_optimizer(model, steps["lr"])
    worst = 0
    for want in steps["trajectory"]:
        optimizer.zero_grad()
        loss = sum(reference_losses(model, *model(*batch)).values())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), steps["clip"])
        optimizer.step()
        worst = max(worst, off(loss, want["loss"]), off(norm, want["grad_norm_before_clip"]))
    return max(worst, off(sum(reference_losses(model, *model(*batch)).values()), steps["loss_after"]))


@pytest.mark.skipif(not GOLDEN.exists(), reason="recorded outputs of the published code are compared where ../shared/golden is")
@pytest.mark.parametrize("name", ["teran_tiny_MrSw", "teran_tiny_shared", "tern_tiny_shared"])
def test_a_checkpoint_that_the_published_code_wrote(name):
    recorded = given(f"{name}.pt")
    published = load_original(GOLDEN/f"{name}.pth.tar")
    batch = reference_batch(*(recorded["inputs"][key] for key in ("images", "boxes", "img_lengths", "captions", "cap_lengths")))
    out = published(*batch)
    sum(reference_losses(published, *out).values()).backward()
    differences = {"scores": compare_scores(recorded, published, *out), "gradients": compare_gradients(recorded, published),
                   "vectors": compare_vectors(recorded, published, batch), "steps": compare_steps(recorded, published, batch)}
    assert max(differences.values()) < 1e-4, differences


@pytest.mark.skipif(not GOLDEN.exists(), reason="recorded batches of the published code are compared where ../shared/golden is")
def test_our_tokenizer_makes_the_batches_of_the_published_loader():
    recorded = given("collate.pt")
    published = load_original(GOLDEN/"teran_tiny_MrSw.pth.tar")
    tokens = published.text.tokenize(recorded["captions_text"])
    images, captions = reference_batch(*(recorded[name] for name in ("img_features", "boxes", "feat_lengths", "ids", "cap_lengths")))
    for ours, theirs in zip(tokens.padded(), captions):
        assert torch.equal(ours, theirs)
    sets = [Regions(str(i), features.numpy(), boxes.numpy(), (1, 1)) for i, (features, boxes, *_) in enumerate(recorded["items"][:8])]
    for ours, theirs in zip(region_batch(sets)[:3], images):
        torch.testing.assert_close(ours.float(), theirs.float(), atol=1e-6, rtol=0)
    assert [published.text.tokenizer.convert_ids_to_tokens(ids)[1:-1] for ids in tokens.ids] == recorded["tokens"]


# names of classes

@pytest.mark.slow
def test_recall_by_the_share_of_names(monkeypatch):
    model, photos = load_model("flickr8k"), load_data("photos")
    monkeypatch.setattr(names_share, "SHARES", (0.0, model.config.names_share))
    without, with_names = [float(line.split("|")[2]) for line in names_share.rsum_by_share("flickr8k", "photos", "test").splitlines()[2:]]
    model.config = replace(model.config, bank=0)
    model.head().whole_scale = model.config.whole_scale
    assert with_names == round(100 * evaluate(model, photos.test).metrics["rsum"], 1)
    assert with_names > without + 20  # these photographs are unlike those that it learned from


# levels of a bank

@pytest.mark.slow
def test_recall_by_the_weight_of_levels(monkeypatch, tmp_path):
    (tmp_path / "things.tsv").write_text("thing\twords\ncat\tcat cats\nnothing\tzyzzyva\n")
    monkeypatch.setattr(levels, "WEIGHTS", (0.0, 0.5))
    rows = levels.by_weight("flickr8k", "photos", "test", str(tmp_path / "things.tsv")).splitlines()[2:]
    without, with_levels = ([float(cell) for cell in row.strip("| ").split("|")] for row in rows)
    model, photos = load_model("flickr8k"), load_data("photos").test
    metrics = evaluate(model, photos).metrics
    assert with_levels[1:4] == [round(100 * metrics[name], 1) for name in ("t2i_r1", "t2i_r5", "t2i_r10")]  # its own weight for images
    assert without[1] < with_levels[1] and without[-1] == with_levels[-1] == without[-2]  # a question of one word is asked without levels


# views of a picture

@pytest.mark.slow
def test_recall_by_the_views_that_are_read(tmp_path):
    photos = load_data("photos").test[:20]
    rows = [{"image": image.id, "caption": caption, "split": "test"} for image in photos for caption in image.captions]
    pd.DataFrame(rows).to_csv(tmp_path / "captions.csv", index=False)

    def recalls(**settings):
        sources = Sources("data/photos/images", tmp_path / "captions.csv", ids=photos.image_ids, extractor_settings=settings)
        folder = tmp_path / f"views{len(settings)}"
        with warnings.catch_warnings(action="ignore"):  # the other photographs have no captions
            prepare(sources, folder, device="cpu", show_progress_bar=False)
        table = views.by_views("flickr8k", str(folder), "test").splitlines()[2:]
        metrics = evaluate(load_model("flickr8k"), load_data(folder).test).metrics
        return {name.strip(): cells for name, *cells in (row.strip("|").split("|") for row in table)}, f"{100 * metrics['rsum']:.1f}"

    (plain, own), (four, mean) = recalls(other_sizes=[]), recalls(other_sizes=[96], mirrored=True)
    assert list(plain) == ["288"] and list(four) == ["288", "288, mirrored too", "96", "96, mirrored too", "288 and 96", "288 and 96, mirrored too"]
    assert plain["288"] == four["288"] and plain["288"][-1].strip() == own
    assert four["288 and 96, mirrored too"][-1].strip() == mean != own
    assert len({data_fingerprint(load_data(folder)) for folder in tmp_path.glob("views*")}) == 2  # of the same first view
