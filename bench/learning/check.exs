# Compares the steps of a run with PyTorch:
#
#     SCONCE_REPLAYS=replays mix run learning/check.exs
#
# An MLP and a GRU learn a hundred steps from real games, here and in `check.py`. Losses must agree within a
# relative error of 1e-3 at every step. See steps.exs.

Code.require_file("../games.exs", __DIR__)
Code.require_file("steps.exs", __DIR__)

# Without dropout, because the two libraries use different random generators.
Steps.main("check", &Games.corpus!/1, [
  {:mlp, [backbone: :mlp, dropout: 0.0], []},
  {:gru, [backbone: :gru, heads: :autoregressive, dropout: 0.0], []}
])
