defmodule Sconce.Pressure.Aimd do
  alias Sconce.Options

  @options [
    objective: [
      type: :float,
      required: true,
      above: 0,
      max: 1.0e12,
      doc: "Largest latency that is good, in the unit of the measurements."
    ],
    figure: [
      type: {:in, [:p99, :mean]},
      default: :p99,
      doc: "The figure of a window of measurements that is compared with the objective."
    ],
    floor: [type: :pos_integer, default: 1, max: 1_000_000_000, doc: "Smallest size."],
    ceiling: [type: :pos_integer, default: 1_024, max: 1_000_000_000, doc: "Largest size."],
    size: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "First size; `nil` is the ceiling."
    ],
    increase: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "What is added to the size; `nil` is a 32nd of the ceiling, at least 1."
    ],
    decrease: [
      type: :float,
      default: 0.7,
      above: 0,
      below: 1,
      doc: "What the size is multiplied with."
    ],
    dead_band: [
      type: :float,
      default: 0.25,
      min: 0,
      below: 1,
      doc: "Share of the objective below it in which the size stays."
    ],
    dwell: [
      type: :non_neg_integer,
      default: 2,
      max: 1_000_000,
      doc:
        "Windows after a decrease in which the size stays: they still hold requests of the larger size."
    ]
  ]

  @moduledoc """
  Follows a load with an integer size: additive increase while a latency is below its objective, multiplicative decrease
  above it (AIMD; Chiu and Jain 1989).

      iex> aimd = Sconce.Pressure.Aimd.new(objective: 10, ceiling: 64, dwell: 1)
      iex> {:smaller, aimd} = Sconce.Pressure.Aimd.observe(aimd, [8.0, 9.0, 25.0])
      iex> aimd.size
      44
      iex> {:same, aimd} = Sconce.Pressure.Aimd.observe(aimd, [14.0])
      iex> {:same, aimd} = Sconce.Pressure.Aimd.observe(aimd, [8.0, 9.0])
      iex> {:larger, aimd} = Sconce.Pressure.Aimd.observe(aimd, [4.0, 5.0])
      iex> aimd
      #Sconce.Pressure.Aimd<size 46 of 1..64, objective 10.0, p99 5.0>

  Three rules keep the size from swinging: it stays within the dead band below the objective, it stays for `:dwell` windows
  after a decrease, and it grows only if the size was in use. A window without measurements changes nothing.

  ## Options

  #{Options.docs(@options)}
  """

  @names Keyword.keys(@options)
  @enforce_keys @names
  defstruct @names ++ [resting: 0, last: nil]

  @typedoc "`size` is the present size, and `last` the figure of the last window, nil before the first."
  @type t :: %__MODULE__{size: pos_integer, last: float | nil}

  @doc """
  Returns a controller with the options of this module.

      iex> Sconce.Pressure.Aimd.new(objective: 5, ceiling: 8).size
      8
      iex> Sconce.Pressure.Aimd.new(objective: 5, floor: 9, ceiling: 8)
      ** (ArgumentError) option :floor: expected at most the ceiling of 8, got: 9
  """
  @spec new(keyword) :: t
  def new(opts) do
    options = Map.new(Options.validate!(opts, @options))
    %{floor: floor, ceiling: ceiling} = options

    floor <= ceiling ||
      Options.argument!("option :floor", floor, "at most the ceiling of #{ceiling}")

    size = options.size || ceiling

    size in floor..ceiling ||
      Options.argument!("option :size", size, "a number from #{floor} to #{ceiling}")

    increase = options.increase || max(div(ceiling, 32), 1)
    struct!(__MODULE__, %{options | size: size, increase: increase})
  end

  @doc """
  Takes the latencies of a window, and returns `:smaller`, `:larger` or `:same`, and the controller.

  `latencies` is a list, or the figure itself as a number. `used` is the largest number of units in use in the window; the
  size grows only from a half of it on. Nil counts as in use.

      iex> aimd = Sconce.Pressure.Aimd.new(objective: 10, ceiling: 64, size: 32)
      iex> {:same, _aimd} = Sconce.Pressure.Aimd.observe(aimd, 2.0, 3)
      iex> {:larger, _aimd} = Sconce.Pressure.Aimd.observe(aimd, 2.0, 20)
  """
  @spec observe(t, [number] | number, non_neg_integer | nil) :: {:smaller | :larger | :same, t}
  def observe(aimd, latencies, used \\ nil)

  def observe(%__MODULE__{objective: objective} = aimd, [], _used) when is_float(objective),
    do: {:same, aimd}

  def observe(%__MODULE__{objective: objective} = aimd, latencies, used)
      when is_float(objective) and is_list(latencies),
      do: observe(aimd, figure(aimd.figure, numbers!(latencies)), used)

  def observe(%__MODULE__{objective: objective} = aimd, latency, used)
      when is_float(objective) and is_number(latency) and
             (used == nil or (is_integer(used) and used >= 0)) do
    %{aimd | last: latency} |> decided(used) |> moved(aimd)
  end

  def observe(%__MODULE__{objective: objective}, latency, used)
      when is_float(objective) and is_number(latency),
      do: Options.argument!("used", used, "a number of units, or nil")

  def observe(%__MODULE__{objective: objective}, latencies, _used) when is_float(objective),
    do: Options.argument!("latencies", latencies, "a number or a list of numbers")

  defp decided(%{last: last, objective: objective, dead_band: band} = aimd, used) do
    cond do
      aimd.resting > 0 -> %{aimd | resting: aimd.resting - 1}
      last > objective -> smaller(aimd)
      last > objective * (1 - band) -> aimd
      used != nil and 2 * used < aimd.size -> aimd
      true -> %{aimd | size: min(aimd.size + aimd.increase, aimd.ceiling)}
    end
  end

  defp smaller(%{size: size, floor: floor} = aimd),
    do: %{aimd | size: max(trunc(size * aimd.decrease), floor), resting: aimd.dwell}

  defp moved(%{size: size} = aimd, %{size: size}), do: {:same, aimd}
  defp moved(%{size: size} = aimd, %{size: before}) when size < before, do: {:smaller, aimd}
  defp moved(aimd, _before), do: {:larger, aimd}

  defp numbers!(latencies) do
    (not List.improper?(latencies) and Enum.all?(latencies, &is_number/1)) ||
      Options.argument!("latencies", latencies, "a number or a list of numbers")

    latencies
  end

  defp figure(:mean, latencies), do: Enum.sum(latencies) / length(latencies)

  # The smallest measurement that 99 % do not exceed.
  defp figure(:p99, latencies) do
    rank = div(99 * length(latencies) + 99, 100)
    latencies |> Enum.sort() |> Enum.at(rank - 1)
  end

  defimpl Inspect do
    def inspect(aimd, _opts) do
      last = if aimd.last, do: ", #{aimd.figure} #{aimd.last}", else: ""
      range = "#{aimd.floor}..#{aimd.ceiling}"

      Sconce.Text.printable(
        "#Sconce.Pressure.Aimd<size #{aimd.size} of #{range}, objective #{aimd.objective}#{last}>"
      )
    end
  end
end
