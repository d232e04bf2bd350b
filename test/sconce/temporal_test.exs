defmodule Sconce.TemporalTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  alias Sconce.{Policy, Temporal}

  doctest Temporal

  test "every backbone is in the table, with its formula and its options" do
    table = capture_io(fn -> :ok = Temporal.print() end)

    for name <- Temporal.backbones() do
      assert table =~ ~r/^#{name} \(/m
      for {option, _spec} <- Temporal.options(name), do: assert(table =~ "#{option} ")
    end

    assert table =~ "h = (1 - z) * n + z * h"
  end

  test "the state is as large as the table says" do
    for {name, size} <- [mlp: 0, lstm: 2 * 3 * 8, gru: 3 * 8] do
      size_options = if name == :mlp, do: [], else: [hidden_size: 8, num_layers: 3]
      spec = [embedding: {:vector, 2}, backbone: name, heads: [go: {:bernoulli, 1}]]
      {:ok, policy} = Policy.init(spec ++ size_options)
      assert policy.state_size == size
    end
  end
end
