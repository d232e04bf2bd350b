# Compares the steps of runs with Gaussian and value heads with PyTorch:
#
#     mix run learning/heads.exs
#
# An MLP learns a hundred steps from a synthetic game whose input has two continuous numbers, here and in
# `heads.py`: once by plain imitation, once by advantage-weighted imitation with a value head. Losses must
# agree within a relative error of 1e-3 at every step. See steps.exs.

Code.require_file("steps.exs", __DIR__)

defmodule Ferry do
  @moduledoc false
  # A ferry in the wind. Some rudders are at a bound, some answers are wrong and have no reward, and frames
  # have different weights, including 0.

  @games 40
  @frames 120

  use Sconce.Game,
    fields: [
      x: [type: {:range, -1, 1}, mirror: :negate],
      wind: [type: {:id, 3}, width: 4, mirror: [{0, 2}]],
      frame: [type: :number, scale: @games * @frames]
    ],
    input: [
      rudder: [type: {:continuous, 2, -0.5, 1.5}, mirror: :flip],
      lamps: [type: {:flags, [:left, :right]}, mirror: [left: :right]],
      gear: [type: {:choice, 3}]
    ]

  # The rewards are written to a file, one line per game. `frame` counts the frames of all games, so that
  # heads.py can find the return of a state.
  def corpus!(dir) do
    games = for game <- 0..(@games - 1), do: game(game)
    rewards = for game <- games, do: [Enum.map_join(game, " ", & &1.reward), "\n"]
    File.write!(Path.join(dir, "rewards"), rewards)
    into = Path.join(dir, "corpus")
    columns = [:reward, :weight]
    {:ok, corpus} = Sconce.Corpus.build(__MODULE__, games, into: into, columns: columns)
    corpus
  end

  defp game(game) do
    :rand.seed(:exsss, {game, 1, 2})
    wind = rem(game, 3)
    for t <- 0..(@frames - 1), do: row(wind, game * @frames + t)
  end

  defp row(wind, frame) do
    x = :rand.uniform() * 2 - 1
    right? = :rand.uniform() < 0.7
    side = if right?, do: x, else: -x

    %{
      frame: %{x: x, wind: wind, frame: frame},
      input: %{
        rudder: [rudder(0.4 * side + 0.2 * (wind - 1), 0.3), rudder(-0.4 * side, 0.2)],
        lamps: %{left: x < -0.3, right: x > 0.3},
        gear: if(right?, do: wind, else: :rand.uniform(3) - 1)
      },
      reward: if(right?, do: 0.25 * (wind + 1), else: 0.0),
      weight: Enum.at([0.0, 0.5, 1.0, 2.0], :rand.uniform(4) - 1)
    }
  end

  defp rudder(mean, deviation),
    do: (0.5 + mean + deviation * :rand.normal()) |> max(-0.5) |> min(1.5)
end

# Without dropout, because the two libraries use different random generators. The network is small and the
# rudders are noisy, because a wide network that learns narrow densities amplifies rounding errors: with
# layers of 512 and a deviation of 0.1, the losses of PyTorch in 32 and in 64 bits differ by a relative
# 4e-2.
policy = [embedding: Ferry, backbone: :mlp, hidden_sizes: [64, 64], dropout: 0.0]

advantage = [
  advantage_temperature: 1.0,
  advantage_max_weight: 5.0,
  discount: 0.8,
  value_weight: 0.5
]

Steps.main("heads", &Ferry.corpus!/1, [
  {:gaussian, policy, []},
  {:advantage, policy ++ [value_head: true], advantage}
])
