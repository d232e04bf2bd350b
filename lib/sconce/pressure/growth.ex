defmodule Sconce.Pressure.Growth do
  @moduledoc false
  # A size under pressure: it shrinks on failure and grows again to the wanted size.

  @enforce_keys [:size, :wanted]
  defstruct @enforce_keys ++ [proven: 0, ceiling: nil, good: 0, since: 0]

  @typedoc """
  `proven` is the size of the last good step, `ceiling` the smallest size that failed and is not forgotten, `good` the good
  steps since the last change, `since` those since the ceiling.
  """
  @type t :: %__MODULE__{
          size: pos_integer,
          wanted: pos_integer,
          proven: non_neg_integer,
          ceiling: pos_integer | nil,
          good: non_neg_integer,
          since: non_neg_integer
        }

  # The share of a size below which growth is not worth another failure.
  @least 8

  @doc "The size of a work that wants `wanted`: all of it, unless less has been the decision."
  @spec wanted(t | nil, pos_integer) :: t
  def wanted(nil, wanted), do: %__MODULE__{size: wanted, wanted: wanted}
  def wanted(%{wanted: wanted} = growth, wanted), do: growth

  def wanted(%{size: size, wanted: before} = growth, wanted) when size < before,
    do: %{growth | size: min(size, wanted), wanted: wanted}

  # The next failure halves the new size.
  def wanted(growth, wanted), do: %{growth | size: wanted, wanted: wanted, proven: 0}

  @doc "The next smaller size, nil at the floor."
  @spec smaller(t, pos_integer) :: t | nil
  def smaller(%{size: size}, floor) when size <= floor, do: nil

  def smaller(%{size: size, proven: proven} = growth, floor) do
    # A trial of more goes back to the size before it; a size that went well is halved.
    trial? = proven > 0 and proven < size
    less = if trial?, do: proven, else: div(size + 1, 2)
    ceiling = min(size, growth.ceiling || size)
    proven = if trial?, do: proven, else: 0
    %{growth | size: max(less, floor), proven: proven, ceiling: ceiling, good: 0, since: 0}
  end

  @doc "Counts a good step. The size grows after `grow_after` of them, if `fits` allows the larger one."
  @spec went_well(t, pos_integer, pos_integer, (pos_integer -> as_boolean(term)) | nil) :: t
  def went_well(%{size: size, wanted: size} = growth, _grow_after, _forget_after, _fits),
    do: %{growth | proven: size, ceiling: nil, good: 0, since: 0}

  def went_well(growth, grow_after, forget_after, fits) do
    growth =
      forgotten(
        %{growth | proven: growth.size, good: growth.good + 1, since: growth.since + 1},
        forget_after
      )

    if growth.good >= grow_after, do: grown(%{growth | good: 0}, fits), else: growth
  end

  defp forgotten(%{since: since} = growth, forget_after) when since >= forget_after,
    do: %{growth | ceiling: nil, since: 0}

  defp forgotten(growth, _forget_after), do: growth

  defp grown(growth, fits) do
    larger = larger(growth)

    if larger > growth.size and (fits == nil or fits.(larger)),
      do: %{growth | size: larger},
      else: growth
  end

  defp larger(%{size: size, wanted: wanted, ceiling: nil}), do: min(2 * size, wanted)

  # Half the way to the ceiling.
  defp larger(%{size: size, wanted: wanted, ceiling: ceiling}) do
    larger = min(div(size + ceiling, 2), wanted)
    if (ceiling - size) * @least > size, do: larger, else: size
  end

  @doc "The size in words, nil if it is as wanted."
  @spec text(t) :: String.t() | nil
  def text(%{size: size, wanted: size}), do: nil
  def text(%{size: size, wanted: wanted, ceiling: nil}), do: "size #{size} of #{wanted}"

  def text(%{size: size, wanted: wanted, ceiling: ceiling}),
    do: "size #{size} of #{wanted}, #{ceiling} failed"
end
