defmodule Sconce.Compress.Logits do
  @moduledoc false
  # The tensors of distillation.

  alias Sconce.Compress.Numbers
  alias Sconce.{Error, Options}

  @doc "The type of a label."
  @spec label(:categorical | :bernoulli) :: {atom, pos_integer}
  def label(:categorical), do: {:s, 64}
  def label(:bernoulli), do: {:u, 8}

  @doc "The numbers of one teacher, or of several; each must have this shape."
  @spec teachers(term, tuple, atom) :: {:ok, [binary]} | {:error, Error.t()}
  def teachers({:mean, all}, shape, op) when length(all) >= 0 do
    read = Enum.map(all, &one(&1, shape, op))

    with nil <- Enum.find(read, &match?({:error, _error}, &1)),
         do: {:ok, for({:ok, data} <- read, do: data)}
  end

  def teachers({:mean, other}, _shape, _op),
    do: Options.argument!("teachers", other, "a list of tensors")

  def teachers(teacher, shape, op),
    do: with({:ok, data} <- one(teacher, shape, op), do: {:ok, [data]})

  defp one(teacher, shape, op) do
    with {:ok, %{shape: other}} when other != shape <-
           Numbers.read(teacher, "logits of a teacher", op) do
      expected = "the shape #{inspect(shape)}"
      Numbers.misfit("logits of a teacher", expected, inspect(other), op)
    else
      {:ok, numbers} -> {:ok, numbers.data}
      {:error, error} -> {:error, error}
    end
  end
end
