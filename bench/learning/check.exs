# The steps of a run, made by PyTorch as well:
#
#     SCONCE_REPLAYS=replays mix run learning/check.exs
#
# An MLP and a GRU learn a hundred steps from real games, here and in `check.py`. Losses must agree within 1e-3 of
# themselves at every step. See steps.exs.

Code.require_file("../games.exs", __DIR__)
Code.require_file("steps.exs", __DIR__)

# Without dropout: the two libraries draw it from different generators.
Steps.main("check", &Games.corpus!/1, [
  {:mlp, [backbone: :mlp, dropout: 0.0], []},
  {:gru, [backbone: :gru, heads: :autoregressive, dropout: 0.0], []}
])
