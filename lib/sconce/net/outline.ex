defmodule Sconce.Net.Outline do
  @moduledoc """
  The layers of a network with the shapes of their outputs, of `Sconce.Net.outline/1`.

  `flops` counts two operations for each product of a convolution, of a linear layer and of attention. `layers` has a
  row for each layer, those inside of others included:

  | field | content |
  |---|---|
  | `name` | the first part of the names of its weights, such as `layers.2` |
  | `kind` | such as `:conv` |
  | `output` | the shape of its output |
  | `parameters` | numbers of its weights |
  | `flops` | operations of a run |
  """

  alias Sconce.{Figures, Net}

  @keys [:output, :layers, :parameters, :flops]
  @enforce_keys @keys
  defstruct @keys

  @typedoc "A layer of an outline."
  @type layer :: %{
          name: String.t(),
          kind: atom,
          output: [pos_integer],
          parameters: non_neg_integer,
          flops: non_neg_integer
        }
  @type t :: %__MODULE__{
          output: [pos_integer],
          layers: [layer],
          parameters: non_neg_integer,
          flops: non_neg_integer
        }

  @doc false
  @spec from_native(map) :: t
  def from_native(%{layers: layers} = own) do
    layers = for layer <- layers, do: %{layer | kind: Net.Spec.kind(layer.kind)}
    struct!(__MODULE__, %{own | layers: layers} |> Map.take(@keys))
  end

  @doc false
  @spec table(t) :: String.t()
  def table(%__MODULE__{} = outline) do
    rows =
      for layer <- outline.layers,
          do: row(layer.name, to_string(layer.kind), layer.output, layer)

    rows = [["layer", "kind", "output", "parameters", "flops"]] ++ rows
    rows = rows ++ [row("all", "", outline.output, outline)]

    widths =
      rows
      |> Enum.zip_with(& &1)
      |> Enum.map(&(&1 |> Enum.map(fn x -> String.length(x) end) |> Enum.max()))

    Enum.map_join(rows, "\n", &(&1 |> line(widths) |> String.trim_trailing()))
  end

  defp row(name, kind, output, %{parameters: parameters, flops: flops}),
    do: [name, kind, Net.Spec.text(output), Figures.grouped(parameters), Figures.grouped(flops)]

  defp line(cells, widths) do
    [cells, widths, [:left, :left, :left, :right, :right]]
    |> Enum.zip_with(fn
      [cell, width, :left] -> String.pad_trailing(cell, width)
      [cell, width, :right] -> String.pad_leading(cell, width)
    end)
    |> Enum.join("  ")
  end

  defimpl Inspect do
    alias Sconce.Figures

    def inspect(%{output: output, layers: layers} = own, _opts) do
      "#Sconce.Net.Outline<#{length(layers)} layers -> #{Sconce.Net.Spec.text(output)} · " <>
        "#{Figures.grouped(own.parameters)} parameters · #{Figures.grouped(own.flops)} flops>"
    rescue
      _built_by_hand -> "#Sconce.Net.Outline<>"
    end
  end
end
