"""LSTM and GRU over 512 frames, in PyTorch's gate order (i, f, g, o and r, z, n with the hidden bias inside r*)."""

import torch
from torch import nn


def keep_biases(c, net, gates=4):
    """Biases of the gates that keep the state (f of an LSTM, z of a GRU). Some channels forget their state within one
    frame, and some keep it for thousands of frames."""
    init = {}
    for name, p in net.named_parameters():
        if "bias_ih" in name:
            init[name] = c.randn(*p.shape, scale=0.1)
            n = len(p) // gates
            init[name][n:2 * n] = torch.linspace(-30, 8, n)
    return init


def lstm_frame(x, w_i, w_h, b_i, b_h, h, cell):
    i, f, g, o = (x @ w_i.T + b_i + h @ w_h.T + b_h).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def gru_frame(x, w_i, w_h, b_i, b_h, h):
    (ri, zi, ni), (rh, zh, nh) = (x @ w_i.T + b_i).chunk(3, -1), (h @ w_h.T + b_h).chunk(3, -1)
    r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
    return ((1 - z) * torch.tanh(ni + r * nh) + z * h,)


def written_out(frame, net, x, state):
    """Computes the layers frame by frame with the plain formulas; state: parts [layers, b, h]."""
    weights = [p.detach() for p in net.parameters()]
    state = [[part[layer].detach() for part in state] for layer in range(net.num_layers)]
    ys = []
    for t in range(x.shape[1]):
        y = x[:, t].detach()
        for layer in range(net.num_layers):
            state[layer] = frame(y, *weights[4 * layer:4 * layer + 4], *state[layer])
            y = state[layer][0]
        ys.append(y)
    return torch.stack(ys, 1), [torch.stack(part) for part in zip(*state)]


def _case(make, frame, source, parts, gates, layers, batch, window, inputs, hidden):
    def run(c):
        c.describe(source, dict(layers=layers, batch=batch, window=window, input=inputs, hidden=hidden,
                                initial_state="given"))
        net = make(inputs, hidden, layers, batch_first=True)
        net = c.module(net, keep_biases(c, net, gates))
        x = c.input("x", c.randn(batch, window, inputs), grad=True)
        first = [c.input(f"{part}0", c.randn(layers, batch, hidden, scale=0.5), grad=True) for part in parts]
        y, last = net(x, tuple(first) if len(first) > 1 else first[0])
        last = last if len(first) > 1 else (last,)
        ys, ends = written_out(frame, net, x, first)
        c.same(y, ys, what="PyTorch and the formulas")
        c.output("y", y)
        for part, value, end in zip(parts, last, ends):
            c.same(value, end, what=f"{part} of PyTorch and the formulas")
            c.output(f"{part}_n", value)
        c.backward_outputs("y", *(f"{part}_n" for part in parts))

    return run


LSTM = "Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate)"
GRU = "Cho et al. 2014, variant with reset gate after the recurrent product"

CASES = {
    "lstm_w512_strong": _case(nn.LSTM, lstm_frame, LSTM, ["h", "c"], 4, 2, 2, 512, 5, 6),
    "gru_w512_strong": _case(nn.GRU, gru_frame, GRU, ["h"], 3, 2, 2, 512, 5, 6),
}
