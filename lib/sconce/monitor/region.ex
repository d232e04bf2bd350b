defmodule Sconce.Monitor.Region do
  @moduledoc false
  # A table of metrics that other processes read while this VM writes, see native/tensor/src/region/mod.rs. Metrics
  # are added when they are first written.

  alias Sconce.Native

  @enforce_keys [:ref]
  defstruct [:ref, :path, numbers: %{}, full: nil]

  @typedoc "`full` is the first metric for which there was no room, nil before."
  @type t :: %__MODULE__{
          ref: reference,
          path: Path.t() | nil,
          numbers: map,
          full: String.t() | nil
        }

  @typedoc "A metric, and what becomes of it."
  @type change :: {metric, {:add | :count | :record, non_neg_integer}}
  @type metric :: {:counter | :gauge | :histogram | :series | :text, name :: String.t(), map}

  @doc "The region of this VM, with a file or in memory alone. A VM has one region for its life, which may get another file."
  @spec of_vm(Path.t() | nil, map) :: {:ok, t} | {:error, Sconce.Error.t()}
  def of_vm(path, meta) do
    with {:ok, {ref, path}} <- Native.monitor_share(path, flat(meta)),
         do: {:ok, %__MODULE__{ref: ref, path: path}}
  end

  @doc "A new region with a file."
  @spec open(Path.t(), map, pos_integer) :: {:ok, t} | {:error, Sconce.Error.t()}
  def open(path, meta, slots) do
    with {:ok, ref} <- Native.monitor_open(path, flat(meta), slots),
         do: {:ok, %__MODULE__{ref: ref, path: path}}
  end

  @doc """
  Writes values: `{kind, name, unit, help, value}`. The value of a gauge is a number or nil, of a counter its sum, of a
  series `{x, y}`. A metric for which there is no room is left out.
  """
  @spec write(t, [{atom, String.t(), String.t(), String.t(), term}]) :: t
  def write(%__MODULE__{} = region, values) do
    {changes, region} = Enum.flat_map_reduce(values, region, &change/2)
    _ = Native.monitor_update(region.ref, changes)
    region
  end

  defp change({kind, name, unit, help, value}, region) do
    case number(region, kind, name, unit, help) do
      {nil, region} -> {[], region}
      {number, region} -> {[made(kind, number, value)], region}
    end
  end

  defp made(:counter, number, sum), do: {:count, number, sum}
  defp made(:gauge, number, nil), do: {:set, number, nil}
  defp made(:gauge, number, value), do: {:set, number, value / 1}
  defp made(:series, number, {x, y}), do: {:push, number, x / 1, y / 1}
  defp made(:text, number, text), do: {:tell, number, text}

  defp number(%{numbers: numbers} = region, kind, name, unit, help) do
    case numbers do
      %{^name => number} ->
        {number, region}

      _new ->
        case Native.monitor_metric(region.ref, kind, name, unit, help) do
          {:ok, number} -> {number, %{region | numbers: Map.put(numbers, name, number)}}
          {:error, _no_room} -> {nil, %{region | full: region.full || name}}
        end
    end
  end

  @doc "The region with the metrics of `slots`, which another process of this VM added."
  @spec known(t, [map]) :: t
  def known(region, slots) do
    Enum.reduce(slots, region, fn slot, region ->
      elem(number(region, slot.kind, slot.name, slot.unit, slot.help), 1)
    end)
  end

  @doc "Removes metrics by their names."
  @spec remove(t, [String.t()]) :: t
  def remove(%__MODULE__{numbers: numbers} = region, names) do
    {gone, numbers} = Map.split(numbers, names)
    removed = for {_name, number} <- gone, do: {:remove, number}
    _ = Native.monitor_update(region.ref, removed)
    %{region | numbers: numbers}
  end

  @doc "Says that the writer lives, and what became of its work, and writes the file."
  @spec beat(t, :running | :done | :failed | :stopped) :: :ok | {:error, Sconce.Error.t()}
  def beat(%__MODULE__{ref: ref}, phase \\ :running), do: Native.monitor_beat(ref, phase)

  # Texts and integers, as the native side reads them.
  defp flat(meta),
    do: for({key, value} <- meta, value != nil, into: %{}, do: {to_string(key), plain(value)})

  defp plain(value) when is_integer(value), do: value

  defp plain(value) do
    text = to_string(value)
    if String.valid?(text), do: text, else: inspect(text)
  end
end
