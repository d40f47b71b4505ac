"""The recurrent text encoders of the rows, against the equations of the GRU (Cho et al. 2014) and the LSTM (Hochreiter and Schmidhuber 1997), word by word."""
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from teran_nb.training.recipe import recipe
from teran_nb.model.network import Network

TEXTS = ["a red kite above a house", "dogs", "two dogs run on the wide green grass"]


def sigmoid(x): return 1/(1 + np.exp(-x))


def gru_step(x, h, cell, w, u, b, c):
    "Reset and update gates, then the candidate; the reset gate multiplies what the candidate sees of the state."
    (wr, wz, wn), (ur, uz, un), (br, bz, bn), (cr, cz, cn) = (np.split(a, 3) for a in (w, u, b, c))
    r, z = sigmoid(wr @ x + br + ur @ h + cr), sigmoid(wz @ x + bz + uz @ h + cz)
    return (1 - z)*np.tanh(wn @ x + bn + r*(un @ h + cn)) + z*h, cell


def lstm_step(x, h, cell, w, u, b, c):
    "Input, forget and output gates around a cell."
    i, f, g, o = np.split(w @ x + b + u @ h + c, 4)
    cell = sigmoid(f)*cell + sigmoid(i)*np.tanh(g)
    return sigmoid(o)*np.tanh(cell), cell


def states(vectors, step, weights):
    "The state after each vector, from a state of zeros."
    h = cell = np.zeros(weights[1].shape[1])
    out = []
    for x in vectors:
        h, cell = step(x, h, cell, *weights)
        out.append(h)
    return out


@pytest.mark.parametrize("row", ["teran-mrsw-bigru", "teran-mrsw-bilstm", "cgam"])
def test_recurrent_rows(row):
    network = recipe(row, "tiny", **{"regions.features": 4, "crossgraph.heads": 2}).network
    torch.manual_seed(0)
    text = Network.build(network, TEXTS*2).text.eval()
    weights = {name: p.detach().numpy().astype("float64") for name, p in text.network.state_dict().items()}
    step = lstm_step if "lstm" in row else gru_step
    got, mask = text(TEXTS)
    for i, tokens in enumerate(text.tokenize(TEXTS).ids):  # without the padding of the batch
        vectors = weights["embed.weight"][tokens]
        sides = []
        for suffix, order in (("", 1), ("_reverse", -1)):
            parts = [weights[f"rnn.{part}_l0{suffix}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            sides.append(np.array(states(vectors[::order], step, parts)[::order]))
        want = sum(sides)/2 if row == "cgam" else np.concatenate(sides, 1)  # CGAM averages its directions (section 2.1)
        assert_close(got[i, mask[i]].detach().double(), torch.tensor(want), atol=1e-5, rtol=1e-4)
