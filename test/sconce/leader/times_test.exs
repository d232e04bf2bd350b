defmodule Sconce.Leader.TimesTest do
  use ExUnit.Case, async: true

  alias Sconce.Leader.Times

  test "quantiles are exact to one in 16" do
    values = for n <- 1..20_000, do: n * 7
    summary = values |> Enum.reduce(Times.new(), &Times.add(&2, &1)) |> Times.summary()
    assert summary.count == 20_000

    for {found, exact} <- [{summary.p50, 70_000}, {summary.p99, 138_600}, {summary.max, 140_000}],
        do: assert(found >= exact and found <= exact * 17 / 16)

    assert Times.summary(Times.new()) == %{count: 0, p50: nil, p99: nil, max: nil}

    assert %{p50: 3, max: 15} =
             Enum.reduce([3, 3, 15], %{}, &Times.add(&2, &1)) |> Times.summary()
  end
end
