defmodule Sconce.Leader.Times do
  @moduledoc false
  # A histogram of microseconds as a map of counts. Quantiles are exact to one in 16.

  @type t :: %{optional(non_neg_integer) => pos_integer}

  @spec new() :: t
  def new, do: %{}

  @spec add(t, non_neg_integer) :: t
  def add(times, us), do: Map.update(times, class(max(us, 0)), 1, &(&1 + 1))

  @doc "Count, p50, p99 and maximum, which are the upper ends of their classes; nil without values."
  @spec summary(t) :: map
  def summary(times) do
    classes = Enum.sort(times)
    count = classes |> Enum.map(&elem(&1, 1)) |> Enum.sum()
    quantile = fn share -> quantile(classes, ceil(count * share)) end
    %{count: count, p50: quantile.(0.5), p99: quantile.(0.99), max: quantile.(1.0)}
  end

  defp quantile([], _rank), do: nil

  defp quantile([{_class, n} | rest], rank) when n < rank and rest != [],
    do: quantile(rest, rank - n)

  defp quantile([{class, _n} | _rest], _rank), do: upper(class)

  # 16 classes in each octave.
  defp class(us) when us < 16, do: us

  defp class(us) do
    shift = length(Integer.digits(us, 2)) - 5
    shift * 16 + Bitwise.bsr(us, shift)
  end

  defp upper(class) when class < 16, do: class

  defp upper(class) do
    shift = div(class, 16) - 1
    Bitwise.bsl(class - shift * 16 + 1, shift) - 1
  end
end
