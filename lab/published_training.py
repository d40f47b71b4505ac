"""The batches, outputs, losses and optimizer of the authors' training code, for step-by-step comparisons with it.

To compare a `PublishedNetwork` with the published code, both must see the same batch, and their outputs must have the same layout. Each function
here converts one of these. `tests/test_lab.py` compares with recorded outputs of the published code.
"""

import torch
from torch import Tensor

from teran_nb.core.packed import length_mask
from teran_nb.model.encoded import Encoded
from teran_nb.model.regions import RegionBatch
from teran_nb.model.text import TokenBatch
from teran_nb.zoo.published_code import filter_words, reference_triplet
from teran_nb.zoo.published_network import PublishedNetwork


def reference_batch(
    images:Tensor,  # Region features, I-CLS (zeros) first, `(n, 1+regions, features)`
    boxes:Tensor,  # Corners as fractions of width and height, `(n, 1+regions, 4)`
    image_lengths:Tensor,  # Regions of each image, I-CLS included, a tensor or a list, `(n,)`
    captions:Tensor,  # Ids of pieces, 0 at padding, `(n, tokens)`
    caption_lengths:Tensor,  # Tokens of each caption, both special ones included, a tensor or a list, `(n,)`
) -> tuple[RegionBatch,TokenBatch]:  # Arguments of `model(...)`
    "A padded batch of the published loader as one of ours."
    if images[:,0].any() or boxes[:,0].any():
        raise ValueError("slot 0 of a published batch is I-CLS, a zero vector with a zero box; "
                         "here it is something else")
    left,top,right,bottom = boxes[:,1:].unbind(-1)
    geometry = torch.stack([left, top, right, bottom, (right-left)*(bottom-top)], -1)
    region_mask = length_mask(torch.as_tensor(image_lengths)-1, images.shape[1]-1)
    lengths = torch.as_tensor(caption_lengths)
    token_mask = length_mask(lengths, captions.shape[1])
    word_mask = length_mask(lengths-1, captions.shape[1])  # without [SEP]
    word_mask[:,0] = False  # without [CLS]
    return RegionBatch(images[:,1:], geometry, region_mask),TokenBatch(captions, token_mask, word_mask & token_mask)


def reference_outputs(
    model:PublishedNetwork,  # Repeats published code
    images:RegionBatch,  # From `reference_batch`
    captions:TokenBatch,  # From `reference_batch`
) -> dict:  # `img_emb_aggr`, `cap_emb_aggr` `(n, dim)`; `img_feats`, `cap_feats` `(slots, n, dim)`; `cap_lengths`
    "Outputs of the published network for a batch, with its names and layout."
    image,regions = model.forward_regions(images)
    caption,words = model.forward_words(captions)
    lengths = captions.mask.sum(1)
    if model.stops is not None:
        kept_slots,lengths = filter_words(captions.ids, lengths, model.stops.to(words.device))
        words = words.gather(1, kept_slots[...,None].expand(-1, -1, words.shape[-1]))
    return {"img_emb_aggr": image, "cap_emb_aggr": caption, "img_feats": regions.transpose(0,1),
            "cap_feats": words.transpose(0,1), "cap_lengths": lengths.tolist()}


def reference_losses(
    model:PublishedNetwork,  # Repeats published code
    images:Encoded,  # First output of `model(...)`
    captions:Encoded,  # Second output; caption `k` belongs to image `k`
) -> dict:  # `alignment-loss`, `matching-loss`, or both; training minimises their sum
    "The training losses of the published code."
    names = {"alignment": "alignment-loss", "global": "matching-loss"}
    training = model.original.config["training"] if model.original else {}
    margin, hardest = training.get("margin", .2), bool(training.get("max-violation", True))
    losses = {}
    for head in model.config.training_heads:
        sim = model.similarity(images, captions, head=head)
        losses[names[head]] = reference_triplet(sim, margin, hardest)
    return losses

def reference_optimizer(
    model:PublishedNetwork,  # Repeats published code
    learning_rate:float=1e-5,  # Above 0; the published default
) -> torch.optim.Adam:  # Over the parameters that the published code trains
    "Adam over all parameters, or all but those of a text encoder that is not fine-tuned."
    frozen = {p for part in model.unmoved_parts for p in part.parameters()}
    return torch.optim.Adam([p for p in model.parameters() if p not in frozen], lr=learning_rate)
