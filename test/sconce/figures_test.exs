defmodule Sconce.FiguresTest do
  use ExUnit.Case, async: true

  alias Sconce.Figures

  doctest Figures

  test "a number keeps three digits, or its whole integer part" do
    texts = for value <- [12_345.6, 100, 99.94, 1, 0.0123], do: Figures.decimal(value)
    assert texts == ["12,346", "100", "99.9", "1.00", "0.012"]
  end

  test "a percentile is one of the values" do
    values = Enum.shuffle(1..200)
    ranks = for percent <- [0, 50, 99, 99.9, 100], do: Figures.percentile(values, percent)
    assert ranks == [1, 100, 198, 200, 200]
  end
end
