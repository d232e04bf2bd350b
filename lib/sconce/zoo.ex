defmodule Sconce.Zoo do
  alias Sconce.{Error, Figures, Net, Options}
  alias Sconce.Zoo.{Audio, Sensor, Vision}

  kinds = [vision: Vision.networks(), audio: Audio.networks(), sensor: Sensor.networks()]

  entries =
    for {kind, networks} <- kinds, {name, task, published, declaration} <- networks do
      %{name: name, kind: kind, task: task, published: published, declaration: declaration}
    end

  @entries Macro.escape(entries)
  @names Enum.map(entries, & &1.name)

  shown = fn declaration ->
    case declaration do
      [{:input, {:tokens, many, _vocabulary}} | _layers] ->
        "#{many} tokens"

      [{:input, shape} | _layers] ->
        Enum.join(shape, "x")

      [{:inputs, inputs} | _layers] ->
        Enum.map_join(inputs, " + ", fn {_name, shape} -> Enum.join(shape, "x") end)
    end
  end

  rows =
    for entry <- entries,
        do:
          "| `#{inspect(entry.name)}` | #{entry.kind} | #{shown.(entry.declaration)} | #{entry.task} | #{entry.published} K |\n"

  @moduledoc """
  Thirty small networks by name, as declarations of `Sconce.Net`. **All are untrained**: `init/2` gives random weights, and
  `Sconce.Net.fit/4` trains them.

  In the repository, `mix run zoo_train.exs` in the folder `bench` trains three of them on generated examples and saves them
  with `--out`: `:keyword_spot` on words of tones, `:anomaly_detect` on the vibration of a machine, and `:gesture_net` on
  digits. `bench/zoo_train.txt` has their accuracy.

      iex> {:ok, net} = Sconce.Zoo.init(:gesture_net, seed: 1)
      iex> net
      #Sconce.Net<1x48x48 -> conv, batch_norm, max_pool, conv, batch_norm, max_pool, 7 more -> 10 · 46,938 parameters · f32>

  The names, the input shapes and the kinds of layers follow a published collection of networks for small devices. Its
  code has not been copied. Widths, strides, heads and numbers of classes were chosen here, so that the number of
  parameters is within 3 % of that of the published code, which the last column gives. Inputs of `:object_track`,
  `:language_detect`, `:named_entity` and `:text_summarize` were not published and are a choice too. Convolutions have batch norm
  and ReLU, except the last one of most networks, the last two of `:ocr_nano`, and the first of `:time_series_forecast` and
  `:energy_predict`. Networks of tokens have a vocabulary of 5000 and vectors of 32 numbers.

  | network | kind | input | output | published |
  |---|---|---|---|---|
  #{rows}
  `table/0` returns our numbers of parameters and of operations. `mix bench zoo` measures size, memory, cold start and
  latency.
  """

  @type name :: atom
  @type kind :: :vision | :audio | :sensor

  @doc """
  Returns the names, of all kinds or of one: `:vision`, `:audio` or `:sensor`.

      iex> length(Sconce.Zoo.names())
      30
      iex> Sconce.Zoo.names(:vision) |> Enum.take(3)
      [:micro_yolo, :efficient_edge, :segment_micro]
  """
  @spec names(kind | :all) :: [name]
  def names(kind \\ :all)
  def names(:all), do: @names

  def names(kind) do
    Options.known!(kind, [:vision, :audio, :sensor], "kind of network")
    for entry <- unquote(@entries), entry.kind == kind, do: entry.name
  end

  @doc """
  Returns the declaration of a network.

      iex> Sconce.Zoo.spec(:keyword_spot).inputs
      [%{name: "input", shape: [40, 49], vocabulary: nil}]
      iex> Sconce.Zoo.spec(:keyword_spots)
      ** (ArgumentError) unknown network :keyword_spots, did you mean :keyword_spot?
  """
  @spec spec(name) :: Net.Spec.t()
  def spec(name), do: Net.Spec.new(entry(name).declaration)

  defp entry(name) do
    Options.known!(name, @names, "network")
    Enum.find(unquote(@entries), &(&1.name == name))
  end

  @doc """
  Creates a network with random weights. Options are those of `Sconce.Net.init/2`.

      iex> {:ok, net} = Sconce.Zoo.init(:sensor_fusion, seed: 1)
      iex> motion = for _axis <- 1..6, do: List.duplicate(0.1, 32)
      iex> {:ok, classes} = Sconce.Net.run(net, motion: motion, context: [20, 1013, 0])
      iex> length(classes)
      6
  """
  @spec init(name, keyword) :: {:ok, Net.t()} | {:error, Error.t()}
  def init(name, opts \\ []), do: name |> spec() |> Net.init(opts)

  @doc """
  Returns a row for each network: its name, kind, task and inputs, whether it is trained, the shape of its output, its
  parameters and operations, and the parameters of the published code (`published`, in thousands).

      iex> {:ok, rows} = Sconce.Zoo.table()
      iex> row = Enum.find(rows, &(&1.name == :micro_yolo))
      iex> {row.output, row.parameters, row.published, row.trained}
      {[25, 12, 12], 25321, 25.2, false}
      iex> Enum.all?(rows, &(abs(&1.parameters / (1000 * &1.published) - 1) < 0.03))
      true
  """
  @spec table() :: {:ok, [map]} | {:error, Error.t()}
  def table do
    Enum.reduce_while(unquote(@entries), {:ok, []}, fn entry, {:ok, rows} ->
      spec = Net.Spec.new(entry.declaration)

      case Net.outline(spec) do
        {:ok, outline} -> {:cont, {:ok, rows ++ [row(entry, spec, outline)]}}
        error -> {:halt, error}
      end
    end)
  end

  defp row(entry, spec, outline) do
    entry
    |> Map.take([:name, :kind, :task, :published])
    |> Map.merge(Map.take(outline, [:output, :parameters, :flops]))
    |> Map.merge(%{inputs: spec.inputs, trained: false})
  end

  @doc """
  Returns `table/0` as text. Raises its error.

      iex> Sconce.Zoo.summary() |> String.split("\\n") |> Enum.take(2)
      ["network               kind    input             output    parameters       flops  trained",
       "micro_yolo            vision  3x96x96           25x12x12      25,321  13,068,288  no"]
  """
  @spec summary() :: String.t()
  def summary do
    case table() do
      {:ok, rows} -> text(rows)
      {:error, error} -> raise error
    end
  end

  defp text(rows) do
    titles = {"network", "kind", "input", "output", "parameters", "flops", "trained"}

    Enum.map_join([titles | Enum.map(rows, &cells/1)], "\n", fn
      {name, kind, input, output, parameters, flops, trained} ->
        String.pad_trailing(name, 22) <>
          String.pad_trailing(kind, 8) <>
          String.pad_trailing(input, 18) <>
          String.pad_trailing(output, 8) <>
          String.pad_leading(parameters, 12) <>
          String.pad_leading(flops, 12) <> "  " <> trained
    end)
  end

  defp cells(row) do
    input = Enum.map_join(row.inputs, " + ", &shape(&1.shape))

    {to_string(row.name), to_string(row.kind), input, shape(row.output),
     Figures.grouped(row.parameters), Figures.grouped(row.flops), "no"}
  end

  defp shape(sizes), do: Enum.join(sizes, "x")
end
