defmodule Sconce.Monitor.Snapshot.Histogram do
  @moduledoc false
  # A logarithmic histogram of a snapshot: the sum of its values and the buckets that have counts. The buckets are those
  # of native/tensor/src/metrics/histogram.rs.

  import Bitwise

  # Buckets per octave; a value below has a bucket of its own.
  @parts 64
  # Buckets of a whole histogram.
  @most 59 * @parts
  @word 1 <<< 64

  defstruct sum: 0, counts: []

  @typedoc "`counts` are pairs of a bucket and its count above 0, in ascending order."
  @type t :: %__MODULE__{sum: non_neg_integer, counts: [{non_neg_integer, pos_integer}]}

  @doc "Returns the number of buckets of a whole histogram."
  def buckets, do: @most

  @doc """
  Returns the middle of a bucket.

      iex> Enum.map([5, 64, 127, 128, 3775], &Sconce.Monitor.Snapshot.Histogram.middle/1)
      [5.0, 64.0, 127.0, 129.0, 1.8374686479671624e19]
  """
  @spec middle(non_neg_integer) :: float
  def middle(bucket) do
    {octave, part} = {div(bucket, @parts), rem(bucket, @parts)}

    case octave do
      0 -> part / 1
      1 -> (@parts + part) / 1
      octave -> (@parts + part + 0.5) * (1 <<< (octave - 1))
    end
  end

  @doc "Returns the number of values."
  @spec count(t) :: non_neg_integer
  def count(%__MODULE__{counts: counts}),
    do: Enum.reduce(counts, 0, fn {_bucket, n}, sum -> sum + n end)

  @doc "Returns the mean of the values, nil without values."
  @spec mean(t) :: float | nil
  def mean(histogram) do
    case count(histogram) do
      0 -> nil
      count -> histogram.sum / count
    end
  end

  @doc """
  Returns the quantile `share` (0 to 1) to the precision of a bucket, nil without values.

      iex> histogram = %Sconce.Monitor.Snapshot.Histogram{sum: 30, counts: [{1, 10}, {20, 1}]}
      iex> for share <- [0.5, 0.99], do: Sconce.Monitor.Snapshot.Histogram.quantile(histogram, share)
      [1.0, 20.0]
  """
  @spec quantile(t, number) :: float | nil
  def quantile(%__MODULE__{counts: counts} = histogram, share) do
    rank = max(ceil(share * count(histogram)), 1)

    Enum.reduce_while(counts, 0, fn {bucket, n}, seen ->
      if seen + n >= rank, do: {:halt, middle(bucket)}, else: {:cont, seen + n}
    end)
    |> then(&if(is_float(&1), do: &1))
  end

  @doc """
  Returns the values recorded after `earlier`, or nil if `earlier` is no earlier state of this histogram.

      iex> alias Sconce.Monitor.Snapshot.Histogram
      iex> now = %Histogram{sum: 30, counts: [{1, 10}, {20, 1}]}
      iex> Histogram.since(now, %Histogram{sum: 4, counts: [{1, 4}]})
      %Histogram{sum: 26, counts: [{1, 6}, {20, 1}]}
      iex> Histogram.since(%Histogram{sum: 4, counts: [{1, 4}]}, now)
      nil
  """
  @spec since(t, t) :: t | nil
  def since(%__MODULE__{} = now, %__MODULE__{} = earlier) do
    before = Map.new(earlier.counts)
    left = Map.drop(before, Enum.map(now.counts, &elem(&1, 0)))
    counts = for {bucket, n} <- now.counts, do: {bucket, n - Map.get(before, bucket, 0)}

    if left == %{} and Enum.all?(counts, fn {_bucket, n} -> n >= 0 end) do
      sum = Integer.mod(now.sum - earlier.sum, @word)
      %__MODULE__{sum: sum, counts: Enum.reject(counts, fn {_bucket, n} -> n == 0 end)}
    end
  end
end
