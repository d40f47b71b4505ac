"""The poolings of the field against plain loops over one pair, without padding; in blocks of little memory; and their gradients."""
import math
from itertools import permutations
from typing import NamedTuple

import pytest
import torch

from teran_nb.core.packed import Packed, toy_sets
from teran_nb.model.alignment import align
from teran_nb.model.poolings import xtr
from teran_nb.model.similarity import similarity

IMAGES = toy_sets([3, 1, 5, 2], 4, torch.float64)
CAPTIONS = toy_sets([2, 0, 6, 1, 3], 4, torch.float64, seed=1)
CAPTIONS.values[-1] = CAPTIONS.values[-2]  # ties


def loop_lse(values, factor): return math.log(sum(math.exp(factor*v) for v in values))/factor
def loop_mean(values): return sum(values)/len(values)


def loop_attended(cosines, among, factor):  # cosines[attended][asking]
    scores = []
    for j in range(len(cosines[0])):
        scaled = []
        for row in cosines:
            length = math.sqrt(sum(max(v, 0)**2 for v in row))
            scaled.append(max(row[j], 0)/length if length else 0)
        total = sum(math.exp(factor*v) for v in scaled)
        weights = [math.exp(factor*v)/total for v in scaled]
        length = math.sqrt(sum(a*b*among[p][q] for p,a in enumerate(weights) for q,b in enumerate(weights)))
        scores.append(sum(w*row[j] for w,row in zip(weights, cosines))/length)
    return scores


def loop_assignment(cosines):
    rows = cosines if len(cosines) >= len(cosines[0]) else list(zip(*cosines))  # every member of the shorter side gets one
    sums = []
    for chosen in permutations(range(len(rows)), len(rows[0])):
        sums.append(sum(rows[r][w] for w,r in enumerate(chosen)))
    return max(sums)/len(rows[0])


def loop_sinkhorn(cosines):
    columns = [1.]*len(cosines[0])
    for _ in range(20):
        rows = [1/len(cosines)/sum(math.exp(v/.1)*c for v,c in zip(row, columns)) for row in cosines]
        columns = [1/len(columns)/sum(math.exp(v/.1)*r for v,r in zip(column, rows)) for column in zip(*cosines)]
    total = 0
    for r,row in zip(rows, cosines): total += sum(r*math.exp(v/.1)*c*v for v,c in zip(row, columns))
    return total


def loop_tokenflow(cosines, among_regions, among_words):
    d = [sum(row)/math.sqrt(sum(map(sum, among_words))) for row in cosines]
    e = [sum(column)/math.sqrt(sum(map(sum, among_regions))) for column in zip(*cosines)]
    def flow(own, other, rows):
        scores = []
        for weight,row in zip(own, rows):
            powers = [math.exp(20*v*x) for v,x in zip(row, other)]
            scores.append(weight*sum(p*v for p,v in zip(powers, row))/sum(powers))
        return loop_mean(scores)
    return (flow(d, e, cosines) + flow(e, d, list(zip(*cosines))))/2


def loop_chamfer(pair):
    of_regions = [loop_lse(row, 16) for row in pair.cosines]
    of_words = [loop_lse(row, 16) for row in pair.turned]
    return (loop_mean(of_regions) + loop_mean(of_words))/2


def best(rows): return [max(row) for row in rows]


class Pair(NamedTuple):
    cosines:list  # A row for each region
    turned:list  # A row for each word
    among_regions:list
    among_words:list


LOOPS = {
    "filip-regions": lambda p: loop_mean(best(p.cosines)),
    "filip": lambda p: loop_mean(best(p.cosines)) + loop_mean(best(p.turned)),
    "scan-t2i": lambda p: loop_mean(loop_attended(p.cosines, p.among_regions, 9)),
    "scan-t2i-lse": lambda p: loop_lse(loop_attended(p.cosines, p.among_regions, 9), 6),
    "scan-i2t": lambda p: loop_mean(loop_attended(p.turned, p.among_words, 4)),
    "scan-i2t-lse": lambda p: loop_lse(loop_attended(p.turned, p.among_words, 4), 5),
    "chan": lambda p: loop_lse(best(p.turned), 10),
    "chamfer": loop_chamfer,
    "assignment": lambda p: loop_assignment(p.cosines),
    "sinkhorn": lambda p: loop_sinkhorn(p.cosines),
    "tokenflow": lambda p: loop_tokenflow(p.cosines, p.among_regions, p.among_words)}


@pytest.mark.parametrize("name", LOOPS)
def test_a_pooling_is_its_loop(name):
    "All pairs have the score of the loop, and a caption without words has 0."
    sims = similarity(IMAGES, CAPTIONS, name)
    assert not sims[:, 1].any()
    for i in range(len(IMAGES)):
        for c in (0, 2, 3, 4):
            r, w = IMAGES[i], CAPTIONS[c]
            pair = Pair(*(x.tolist() for x in (r @ w.T, w @ r.T, r @ r.T, w @ w.T)))
            assert abs(sims[i, c].item() - LOOPS[name](pair)) < 1e-8


def loop_xtr(caption, k):
    scores = []
    for word in caption:
        last = sorted((IMAGES.values @ word).tolist(), reverse=True)[k-1]
        best = [(IMAGES[i] @ word).max().item() for i in range(len(IMAGES))]
        scores.append([v if v >= last else None for v in best])
    of_images = [[v for v in image if v is not None] for image in zip(*scores)]
    return [loop_mean(values) if values else 0. for values in of_images]


def test_xtr_is_its_loop():
    "XTR looks at all images, so its loop does too. With k = 64 all eleven regions are retrieved, and it equals MrAvgw."
    (r, region_mask), (w, word_mask) = IMAGES.padded(), CAPTIONS.padded()
    few = xtr(align(r, w), region_mask, word_mask, k=3)
    for c in (0, 2, 3, 4):
        assert few[:, c].tolist() == pytest.approx(loop_xtr(CAPTIONS[c], 3), abs=1e-8)
    assert torch.allclose(similarity(IMAGES, CAPTIONS, "xtr"), similarity(IMAGES, CAPTIONS, "mravgw"), atol=1e-8)


def with_gradients(name, memory):
    vectors = [side.values.clone().requires_grad_() for side in (IMAGES, CAPTIONS)]
    sims = similarity(Packed(vectors[0], IMAGES.offsets), Packed(vectors[1], CAPTIONS.offsets), name, memory=memory)
    return sims, *torch.autograd.grad((sims*torch.arange(20.).view(4, 5)).sum(), vectors)


@pytest.mark.parametrize("name", [*LOOPS, "xtr"])
def test_blocks_change_nothing(name):
    "In blocks of little memory, scores and gradients stay the same."
    for small, large in zip(with_gradients(name, 2e-3), with_gradients(name, 256)):
        assert torch.allclose(small, large, atol=1e-8)


@pytest.mark.parametrize("name", ["filip", "xtr", "scan-t2i", "scan-i2t-lse", "chamfer", "assignment", "sinkhorn", "tokenflow"])
def test_gradients_are_finite_differences(name):
    some_words = CAPTIONS[torch.tensor([0, 4])]

    def of_regions(values): return similarity(Packed(values, IMAGES.offsets), some_words, name)

    assert torch.autograd.gradcheck(of_regions, IMAGES.values.clone().requires_grad_(), fast_mode=True)
