# Live games at 60 frames a second with and without a learner: decisions past the 16.67 ms of their frame, lag and drops.
#
#     mix run live.exs [--minutes M] [--games N] [--nodes 2]
#
# Games play CartPole in Elixir, each in a process that decides once every 1/60 s. With `--nodes 2` as many games again play
# in another VM of this machine. The same games play first without a learner, as a control.

Sconce.Bench.Live.main(System.argv())
