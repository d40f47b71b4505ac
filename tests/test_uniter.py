"""A published UNITER in our frame: the equations of its code, written here by themselves, and everything that reads a model with a joint head."""
import math
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEmbeddings, BertEncoder, BertPooler

from teran_nb import load_model
from teran_nb.data.features import Features
from teran_nb.data.features import FeatureWriter
from teran_nb.data.words import make_tokenizer
from teran_nb.training.datasets import load_data
from teran_nb.measure.evaluation import evaluate
from teran_nb.training.recipe import recipe
from teran_nb.training.runs import train
from teran_nb.look.charts import show_relations
from teran_nb.model.heads import reranked
from teran_nb.model.single_stream import word_relations
from teran_nb.zoo.uniter import UniterNetwork


class PublishedImages(nn.Module):
    "`UniterImageEmbeddings` of the published model/model.py."
    def __init__(self, c, features):
        super().__init__()
        self.img_linear, self.pos_linear = nn.Linear(features, c.hidden_size), nn.Linear(7, c.hidden_size)
        self.img_layer_norm, self.pos_layer_norm, self.LayerNorm = (nn.LayerNorm(c.hidden_size, eps=1e-12) for _ in range(3))
        self.mask_embedding = nn.Embedding(2, features)
    def forward(self, features, boxes, kind):
        return self.LayerNorm(self.img_layer_norm(self.img_linear(features)) + self.pos_layer_norm(self.pos_linear(boxes)) + kind)


class PublishedModel(nn.Module):
    "`UniterModel`: its parts by their published names."
    def __init__(self, c, features):
        super().__init__()
        self.embeddings, self.img_embeddings = BertEmbeddings(c), PublishedImages(c, features)
        self.encoder, self.pooler = BertEncoder(c), BertPooler(c)


class PublishedRetrieval(nn.Module):
    "`UniterForImageTextRetrieval` of model/itm.py: a padded batch of pairs to their scores."
    def __init__(self, c, features):
        super().__init__()
        self.uniter, self.itm_output, self.rank_output = PublishedModel(c, features), nn.Linear(c.hidden_size, 2), nn.Linear(c.hidden_size, 1)
    def hidden(self, ids, lengths, features, boxes, counts):
        u, width = self.uniter, self.uniter.embeddings.word_embeddings.weight.shape[1]
        text = u.embeddings(input_ids=ids)
        kind = u.embeddings.token_type_embeddings(torch.ones(features.shape[:2], dtype=torch.int64))
        both = torch.cat([text, u.img_embeddings(features, boxes, kind)], 1)
        size = max(n + m for n, m in zip(lengths, counts))
        gather = torch.arange(size).repeat(len(ids), 1)  # the regions right behind each text
        for i, (n, m) in enumerate(zip(lengths, counts)):
            gather[i, n:n+m] = torch.arange(ids.shape[1], ids.shape[1] + m)
        x = both.gather(1, gather[..., None].expand(-1, -1, width))
        real = torch.arange(size)[None] < (torch.tensor(lengths) + torch.tensor(counts))[:, None]
        bias = (1 - real.float())[:, None, None] * -10000
        states = [x]
        for layer in u.encoder.layer:
            states.append(layer(states[-1], bias))
        return states
    def forward(self, *pairs): return self.rank_output(self.uniter.pooler(self.hidden(*pairs)[-1]))[:, 0]


TEXTS = ["a red kite flies above a house", "two dogs run", "", "a dog on the grass beside a small dog", "a house"]
FEATURES = 12


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    "A random model of the published code, its checkpoint, its tokenizer, and pictures."
    folder = tmp_path_factory.mktemp("uniter")
    torch.manual_seed(0)
    tokenizer = make_tokenizer([*TEXTS, *load_data("scenes:tiny").train.captions.texts])
    c = BertConfig(vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=3, num_attention_heads=2, intermediate_size=160,
                   max_position_embeddings=64, attn_implementation="eager")
    tokenizer.save_pretrained(folder / "tokenizer")
    c.save_pretrained(folder / "tokenizer")
    model = PublishedRetrieval(c, FEATURES).eval()
    for name, p in model.named_parameters():  # also the norms: no weight is what it starts as
        nn.init.normal_(p, 1 if "norm" in name.lower() and name.endswith("weight") else 0, .25)
    weights = model.state_dict() | {"cls.predictions.bias": torch.zeros(3), "feat_regress.bias": torch.zeros(3)}
    torch.save(weights, folder / "uniter-tuned.pt")
    torch.save({k: v for k, v in weights.items() if "rank_output" not in k}, folder / "uniter-base.pt")
    rng = np.random.default_rng(0)
    with FeatureWriter(folder / "store", "somebody", dim=FEATURES) as store:
        for i, n in enumerate((4, 1, 6)):
            corners = np.sort(rng.uniform(0, 60, (n, 2, 2)), 1).reshape(n, 4)
            store.add(f"im{i}", rng.normal(size=(n, FEATURES)), corners, (80, 60))
    return folder, model, tokenizer


def batch_of(store, tokenizer):
    "All pairs, image by image, padded as the published `itm_eval_collate` pads."
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in TEXTS]
    boxes, features = [], []
    for k in store.image_ids:
        x1, y1, x2, y2 = (torch.tensor(store[k].boxes)/torch.tensor([80, 60, 80, 60])).unbind(1)
        boxes.append(torch.stack([x1, y1, x2, y2, x2-x1, y2-y1, (x2-x1)*(y2-y1)], 1).float())
        features.append(torch.tensor(store[k].features).float())
    pairs = [(i, j) for i in range(len(features)) for j in range(len(ids))]
    pad = nn.utils.rnn.pad_sequence
    return (pad([ids[j] for _, j in pairs], True), [len(ids[j]) for _, j in pairs], pad([features[i] for i, _ in pairs], True),
            pad([boxes[i] for i, _ in pairs], True), [len(features[i]) for i, _ in pairs])


def test_scores_and_attention_are_those_of_the_published_code(published):
    folder, reference, tokenizer = published
    store = Features(folder / "store")
    batch = batch_of(store, tokenizer)
    model = load_model(folder / "uniter-tuned.pt", text=str(folder / "tokenizer"))
    images, captions = model.encode_images(store), model.encode_captions(TEXTS)
    with torch.no_grad():
        want = reference(*batch).view(3, 5)
        states = reference.hidden(*batch)
    torch.testing.assert_close(model.similarity(images, captions), want, atol=2e-5, rtol=1e-4)
    assert want.std() > .05  # or equal scores would prove nothing
    with torch.no_grad():
        matching = reference.itm_output(reference.uniter.pooler(states[-1]))[:, 1].view(3, 5)
    base = load_model(folder / "uniter-base.pt", text=str(folder / "tokenizer"))
    torch.testing.assert_close(base.similarity(images, captions), matching, atol=2e-5, rtol=1e-4)
    assert set(base.unused_weights) == {"cls.predictions.bias", "feat_regress.bias", "itm_output.weight", "itm_output.bias", "uniter.img_embeddings.mask_embedding.weight"}
    for layer in (1, 2, 3):  # IAIS: heads averaged, [CLS] and [SEP] left out, each block by itself
        pair, words, regions = 3, len(tokenizer(TEXTS[3])["input_ids"]) - 2, 4
        attention, x = reference.uniter.encoder.layer[layer-1].attention.self, states[layer-1][pair:pair+1]
        query, key = (f(x).unflatten(-1, (2, 64)).transpose(1, 2) for f in (attention.query, attention.key))
        scores = (query @ key.mT/math.sqrt(64))[0, :, 1:words+2+regions]
        word, region = slice(0, words), slice(words+1, words+1+regions)
        with torch.no_grad():
            got = model.heads["joint"].relations(images.parts[:1], captions.parts[3:4], layer=layer)
        for block, rows, columns in ((got.words, word, word), (got.regions, region, region), (got.words_to_regions, word, region), (got.regions_to_words, region, word)):
            keys = slice(columns.start+1, columns.stop+1)
            torch.testing.assert_close(block[0], scores[:, rows, keys].softmax(-1).mean(0).detach(), atol=1e-5, rtol=1e-4)
    alignment = model.align(store["im0"], TEXTS[3])
    after = states[-1][pair]
    cosines = nn.functional.cosine_similarity(after[words+2:words+2+regions, None], after[None, 1:words+1], dim=-1)
    torch.testing.assert_close(torch.as_tensor(alignment.cosines), cosines, atol=1e-5, rtol=1e-4)


def test_everything_that_reads_a_joint_head(published, tmp_path):
    "Evaluate with ISDa, draw relations, rank again what another model found."
    folder, _, tokenizer = published
    dataset = load_data("scenes:tiny")
    features = dataset.features.dim
    torch.manual_seed(1)
    c = BertConfig.from_pretrained(folder / "tokenizer", num_hidden_layers=1)
    torch.save(PublishedRetrieval(c, features).state_dict(), tmp_path / "uniter.pt")
    model = load_model(tmp_path / "uniter.pt", text=str(folder / "tokenizer"))
    test = dataset.test[:6]
    result = evaluate(model, test)
    assert {"t2i_r1", "isda"} <= result.metrics.keys()
    image = test[0]
    assert len(show_relations({"UNITER": word_relations(model, image, image.captions[0])})) == 2
    images, captions = model.encode_images(test), model.encode_captions(test)
    other = torch.rand(len(test), len(test.captions.texts))
    again = reranked(model.head().similarity, images, captions, other, 2)
    best = other.topk(2, 0).indices
    torch.testing.assert_close(again.gather(0, best), model.similarity(images, captions).gather(0, best), atol=1e-5, rtol=1e-4)
    assert evaluate(model, test, rerank=6).metrics["t2i_r1"] == result.metrics["t2i_r1"]  # all six images are read again


class Interrupted:
    "Features that press Ctrl-C when they are read a number of times."
    def __init__(self, features, reads): self.features, self.reads = features, reads
    def __getattr__(self, name): return getattr(self.features, name)
    def __getitem__(self, i):
        self.reads -= 1
        if not self.reads:
            os.kill(os.getpid(), signal.SIGINT)
        return self.features[i]


@pytest.mark.slow
def test_fine_tuning_by_the_preset_of_iais(published, tmp_path):
    "UNITER, mined negatives, AdamW and linear decay: stopped within an epoch and resumed, the same digits; what is saved opens as UNITER."
    folder, _, tokenizer = published
    dataset, source = load_data("scenes:tiny"), tmp_path / "uniter.pt"
    rows = []
    for split, n in {"train": 12, "val": 4, "test": 2}.items():
        rows += np.flatnonzero(np.array(dataset.captions.splits) == split)[:n].tolist()
    dataset = dataset[rows]
    torch.manual_seed(1)
    c = BertConfig.from_pretrained(folder / "tokenizer", num_hidden_layers=1)
    torch.save(PublishedRetrieval(c, dataset.features.dim).state_dict(), source)
    small = {"train.joint.hard_negatives": 2, "train.joint.candidates": 5, "train.steps": 3, "train.epochs": 2, "train.batch_size": 4, "train.warmup_steps": 2, "train.learning_rate": 1e-3}
    todo = recipe("iais-singular", "iais", tokenizer=str(folder / "tokenizer"), begins=str(source), **small)
    assert (todo.network.training_heads, todo.network.joint.width, todo.train.optimizer, todo.train.schedule) == (("joint",), 128, "adamw", "linear")
    with pytest.raises(ValueError, match="is a UNITER, and teran-mrsw has no joint head"):
        recipe("teran-mrsw", "tiny", begins=str(source))
    whole = train(todo, dataset, tmp_path / "whole")
    run, features = tmp_path / "stopped", dataset.features
    dataset.features = Interrupted(features, 4*9 + 12)  # each step reads 4 images and 5 candidates: in the fifth of six
    with pytest.raises(KeyboardInterrupt, match="stopped in epoch 2 after step"):
        train(todo, dataset, run)
    dataset.features = features
    resumed = train(todo, dataset, run)
    numbers = [[{k: v for k, v in epoch.items() if k != "seconds"} for epoch in r.history.epochs] for r in (whole, resumed)]
    assert numbers[0] == numbers[1] and len(numbers[0]) == 2
    first, opened = load_model(source, text=str(folder / "tokenizer")), load_model(run)
    assert type(opened) is UniterNetwork and opened.config == todo.for_data(dataset).network
    before, after = first.state_dict(), opened.state_dict()
    still = {k for k, v in after.items() if torch.equal(v, before[k])}
    norm = "text.network.bert.embeddings.LayerNorm"  # the head has its scale and shift
    assert still == {f"{norm}.weight", f"{norm}.bias"}, still
