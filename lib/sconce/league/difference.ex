defmodule Sconce.League.Difference do
  @moduledoc false
  # The interval of the difference of two ratings, by the curvature of the likelihood that native/play/src/league/elo.rs
  # maximises. Both have the scale, the imagined games and the quantile.

  # Points of a rating for a unit of strength: 400 points are odds of 10 to 1.
  @points 400 / :math.log(10)
  # Imagined games of each player against an average one.
  @imagined 2.0
  # Standard normal quantile of a two-sided interval of 95 %.
  @quantile 1.96

  @doc "The half width of the interval of 95 % for the difference of the ratings of players `i` and `j`, in points."
  @spec margin([float], [[non_neg_integer]], non_neg_integer, non_neg_integer) :: float
  def margin(elos, games, i, j) do
    strengths = elos |> Enum.map(&(&1 / @points)) |> centred()
    contrast = for k <- 0..(length(elos) - 1), do: contrast(k, i, j)
    solved = strengths |> curvature(games) |> solve(contrast)
    variance = Enum.at(solved, i) - Enum.at(solved, j)
    @quantile * @points * :math.sqrt(max(variance, 0.0))
  end

  defp contrast(i, i, _j), do: 1.0
  defp contrast(j, _i, j), do: -1.0
  defp contrast(_k, _i, _j), do: 0.0

  # Ratings have a mean of their own. At the maximum the imagined games are scored as expected: half of them are won.
  defp centred(strengths) do
    half = length(strengths) / 2
    expected = fn shift -> strengths |> Enum.map(&logistic(&1 - shift)) |> Enum.sum() end
    shift = bisected(expected, half, Enum.min(strengths), Enum.max(strengths), 60)
    Enum.map(strengths, &(&1 - shift))
  end

  defp bisected(_falling, _level, low, high, 0), do: (low + high) / 2

  defp bisected(falling, level, low, high, steps) do
    middle = (low + high) / 2

    if falling.(middle) > level,
      do: bisected(falling, level, middle, high, steps - 1),
      else: bisected(falling, level, low, middle, steps - 1)
  end

  # The negative second derivatives of the log-likelihood.
  defp curvature(strengths, games) do
    for {{own, row}, i} <- strengths |> Enum.zip(games) |> Enum.with_index() do
      weights =
        for {{other, count}, j} <- strengths |> Enum.zip(row) |> Enum.with_index() do
          if i == j, do: 0.0, else: count * spread(own - other)
        end

      weights
      |> Enum.map(&(-&1))
      |> List.replace_at(i, @imagined * spread(own) + Enum.sum(weights))
    end
  end

  defp spread(x) do
    share = logistic(x)
    share * (1 - share)
  end

  defp logistic(x), do: 1 / (1 + :math.exp(-x))

  # Gauss's elimination. The diagonal of the matrix dominates, so no pivot is 0.
  defp solve(matrix, right), do: matrix |> Enum.zip_with(right, &{&1, &2}) |> eliminated()

  defp eliminated([]), do: []

  defp eliminated([{[pivot | first], value} | rest]) do
    rest =
      for {[factor | row], own} <- rest do
        if factor == 0,
          do: {row, own},
          else: reduced({row, own}, factor / pivot, first, value)
      end

    solved = eliminated(rest)
    known = first |> Enum.zip_with(solved, &(&1 * &2)) |> Enum.sum()
    [(value - known) / pivot | solved]
  end

  defp reduced({row, own}, share, first, value),
    do: {Enum.zip_with(row, first, &(&1 - share * &2)), own - share * value}
end
