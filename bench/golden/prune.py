"""Pruning by second-order information (SparseGPT), in the exact sequential form."""

import torch

BLOCK = 128


def second_order(w, h, drop, width):
    """Removes `drop(begin, end)` weights of each group of columns, in order.

    Frantar & Alistarh 2023, section 3: when a group begins, those with the smallest w_j^2 / [H_j^-1]_jj go, where H_j is the Hessian of
    the columns from j on. Each removal at j adds -w_j / [H_j^-1]_jj [H_j^-1]_jk to the columns k > j (Hassibi & Stork 1993, eq. 5).
    """
    w, cols = w.clone(), w.shape[1]
    inverse = [torch.linalg.inv(h[j:, j:]) for j in range(cols)]
    margin = torch.inf
    for begin in range(0, cols, width):
        end = min(begin + width, cols)
        scores = torch.stack([w[:, j] ** 2 / inverse[j][0, 0] for j in range(begin, end)], 1)
        count = drop(begin, end)
        ranked = scores.sort(1).values
        if 0 < count < end - begin:
            margin = min(margin, (ranked[:, count] / ranked[:, count - 1] - 1).min().item())
        gone = scores.argsort(1)[:, :count]
        removed = torch.zeros_like(scores).scatter_(1, gone, 1.0).bool()
        for j in range(begin, end):
            step = torch.where(removed[:, j - begin], w[:, j] / inverse[j][0, 0], torch.zeros(()).double())
            w[:, j:] -= step[:, None] * inverse[j][0]
            w[removed[:, j - begin], j] = 0.0
    return w, margin


def largest(w, drop, width):
    w = w.clone()
    for begin in range(0, w.shape[1], width):
        part = w[:, begin : begin + width]
        part.scatter_(1, part.abs().argsort(1)[:, : drop(begin, begin + part.shape[1])], 0.0)
    return w


def _case(rows, cols, sparsity=None):
    def run(c):
        damping, width = 0.01, 4 if sparsity is None else BLOCK

        def drop(begin, end):
            if sparsity is None:
                return max(end - begin - 2, 0)
            return round(sparsity * end) - round(sparsity * begin)

        c.describe("Frantar & Alistarh 2023 (SparseGPT), section 3, from the exact removals of Hassibi & Stork 1993, eq. 5",
                   dict(shape=[rows, cols], damping=damping, sparsity=sparsity, width=width, hessian="2 X^T X / samples, given",
                        damp="add damping * mean(diagonal) to the diagonal", error="trace((W - P) H (W - P)^T), H as given"),
                   output=2e-5, fd=False)
        mixed = torch.eye(cols, dtype=torch.float64) + 0.25 * c.randn(cols, cols)
        x = c.randn(3 * cols, cols) @ mixed
        w = c.input("weight", c.randn(rows, cols))
        h = c.input("hessian", 2 * x.T @ x / (3 * cols))
        damped = h + damping * h.diagonal().mean() * torch.eye(cols, dtype=torch.float64)
        pruned, margin = second_order(w, damped, drop, width)
        assert margin > 1e-4, f"tie {margin}"
        d, plain = w - pruned, w - largest(w, drop, width)
        error, of_largest = (d @ h * d).sum(), (plain @ h * plain).sum()
        assert error < 0.9 * of_largest, f"{error} {of_largest}"
        c.output("mask", pruned != 0), c.output("pruned", pruned)
        c.output("error", error), c.output("error_largest", of_largest)

    return run


CASES = {
    "prune_second_order_two_four": _case(6, 30),
    "prune_second_order_0.6": _case(6, 140, 0.6),
}
