defmodule Sconce.Compress.Measure do
  @moduledoc false
  # What a search bounds: the NLL, the share of changed actions or the mean return. `found` is a search or its options.

  alias Sconce.Figures

  @doc "The measure: `:nll`, `:changed` or `:return`."
  def what(%{within: {what, _share}}), do: what
  def what(opts), do: elem(opts[:within], 0)

  @doc "The bound, given the point of the given policy."
  def bound({:nll, share}, base), do: base.nll + share * abs(base.nll)
  def bound({:changed, share}, _base), do: share
  def bound({:return, share}, base), do: base.return - share * abs(base.return)

  @doc "Whether a point is within a bound."
  def within?(point, bound, opts), do: loss(point, opts) <= loss(bound, opts)

  @doc "What is less for a better policy, of a point or of a bound."
  def loss(%{} = point, opts), do: point |> Map.fetch!(what(opts)) |> loss(opts)
  def loss(value, opts), do: if(what(opts) == :return, do: -value, else: value)

  @doc "The first line of the table."
  def title(%{within: {:nll, share}, base: base} = found),
    do:
      "#{found.for} within #{percent(share)} of the NLL #{nll(base.nll)}: at most #{nll(found.bound)}"

  def title(%{within: {:changed, share}} = found),
    do: "#{found.for} with at most #{percent(share)} of the likeliest actions changed"

  def title(%{within: {:return, share}, base: base} = found),
    do:
      "#{found.for} within #{percent(share)} of the mean return #{number(base.return)}: at least #{number(found.bound)}"

  @doc "The heads of two columns of the table."
  def columns(:nll), do: ["NLL", "of f32"]
  def columns(:changed), do: ["changed %", "NLL"]
  def columns(:return), do: ["return", "of f32"]

  @doc "The cells of a point in these columns."
  def cells(point, %{base: base} = found) do
    case what(found) do
      :nll -> [nll(point.nll), share(point.nll, base.nll)]
      :changed -> [ratio(100 * point.changed), nll(point.nll)]
      :return -> [number(point.return), share(point.return, base.return)]
    end
  end

  @doc "A line about a new score."
  def line(point, opts),
    do: "int8 #{point.counts[8]}, int4 #{point.counts[4]}: #{measured(point, what(opts))}"

  defp measured(point, :nll), do: "NLL #{nll(point.nll)}"
  defp measured(point, :changed), do: "#{ratio(100 * point.changed)} % changed"
  defp measured(point, :return), do: "mean return #{number(point.return)}"

  @doc "The name of the axis of the picture, and the factor of its numbers."
  def axis(found) do
    case what(found) do
      :nll -> {"NLL", 1}
      :changed -> {"changed actions, %,", 100}
      :return -> {"mean return", 1}
    end
  end

  @doc "The measure of the chosen policy beside that of the given one."
  def gain(%{within: {:nll, _share}, base: base, chosen: chosen}),
    do: "NLL #{nll(chosen.nll)} of #{nll(base.nll)}"

  def gain(%{within: {:changed, _share}, chosen: chosen}),
    do: "#{ratio(100 * chosen.changed)} % of the actions changed"

  def gain(%{within: {:return, _share}, base: base, chosen: chosen}),
    do: "mean return #{number(chosen.return)} of #{number(base.return)}"

  defp share(_value, base) when base == 0, do: "-"
  defp share(value, base), do: ratio(value / base)

  # Returns may be negative.
  defp number(value) when value < 0, do: "-" <> number(-value)
  defp number(value), do: Figures.decimal(value)

  defp nll(value), do: :erlang.float_to_binary(value / 1, decimals: 5)
  defp ratio(value), do: :erlang.float_to_binary(value / 1, decimals: 4)
  defp percent(share), do: "#{Figures.decimal(100 * share)} %"
end
