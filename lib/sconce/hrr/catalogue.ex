defmodule Sconce.HRR.Catalogue do
  @moduledoc false
  # The options and arguments of `Sconce.HRR`.

  alias Sconce.Compress.Numbers
  alias Sconce.{Error, Options}

  @most_count 2 ** 31
  @most_dimension 2 ** 24

  @seed [type: :non_neg_integer, default: 0, max: 2 ** 64 - 1, doc: "Seed of the random numbers."]

  @atoms [
    kind: [
      type: {:in, [:unitary, :gaussian]},
      default: :unitary,
      doc: "Distribution: see the table above."
    ],
    seed: @seed
  ]

  @project [
    seed: @seed,
    normalise: [type: :boolean, default: true, doc: "Divides each projection by its length."]
  ]

  @superpose [
    group: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 2 ** 31,
      doc: "Consecutive vectors of a sum; `nil` adds all vectors of a batch."
    ],
    weights: [
      type: {:or, [{:list, :float}, nil]},
      default: nil,
      doc: "A factor of each vector of a sum, or of each batch of a list."
    ],
    normalise: [type: :boolean, default: true, doc: "Divides each sum by its length."]
  ]

  @unbind [
    exact: [
      type: :boolean,
      default: false,
      doc: "Divides by the spectrum of the keys instead of taking its conjugate."
    ]
  ]

  @sequence [
    length: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 2 ** 31,
      doc: "Vectors of a sequence; `nil` makes one sequence of all."
    ]
  ]

  @doc "The options of a function."
  @spec schema(:atoms | :project | :superpose | :unbind | :sequence) :: Options.schema()
  def schema(:atoms), do: @atoms
  def schema(:project), do: @project
  def schema(:superpose), do: @superpose
  def schema(:unbind), do: @unbind
  def schema(:sequence), do: @sequence

  @doc "Checks a number of vectors."
  @spec count!(term) :: pos_integer
  def count!(count) when count in 1..@most_count, do: count
  def count!(other), do: Options.argument!("count", other, "an integer from 1 to #{@most_count}")

  @doc "Checks a dimension. The native side refuses those that are too small or odd."
  @spec dimension!(term) :: non_neg_integer
  def dimension!(dimension) when dimension in 0..@most_dimension, do: dimension

  def dimension!(other),
    do: Options.argument!("dimension", other, "an integer from 8 to #{@most_dimension}")

  @doc "Reads rows of 32-bit floats, with their width. A vector is one row."
  @spec rows(term, atom) :: {:ok, binary, non_neg_integer} | {:error, Error.t()}
  def rows(tensor, op) do
    case Numbers.read(tensor, "tensor", op) do
      {:ok, %{shape: {width}, data: data}} ->
        {:ok, data, width}

      {:ok, %{shape: {_count, width}, data: data}} ->
        {:ok, data, width}

      {:ok, %{shape: shape}} ->
        Numbers.misfit("tensor", "a vector or a matrix", "the shape #{inspect(shape)}", op)

      error ->
        error
    end
  end
end
