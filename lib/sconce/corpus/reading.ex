defmodule Sconce.Corpus.Reading do
  @moduledoc false
  # The answers of the native side about a corpus as terms of Elixir: its summary, its heads, and the frames of a game.

  alias Sconce.{Corpus, Error, Native}
  alias Sconce.Game.Declaration
  alias Sconce.Policy.{Head, Spec}

  @doc "The summary of an open corpus."
  @spec info(reference) :: {:ok, Corpus.info()} | {:error, Error.t()}
  def info(handle), do: with({:ok, info} <- Native.corpus_info(handle), do: {:ok, tidy(info)})

  @doc "The heads that match the labels, as `{name, kind}`."
  @spec heads(reference) :: {:ok, [{Spec.head_name(), tuple}]} | {:error, Error.t()}
  def heads(handle),
    do: with({:ok, info} <- Native.corpus_info(handle), do: {:ok, heads_of(info.schema)})

  defp heads_of(%{name: "vector", heads: heads}),
    do: for([name, kind] <- heads, do: {Spec.local(name), Head.from_native(kind)})

  defp heads_of(schema) do
    for head <- Spec.new(embedding: schema(schema)).heads, do: {head.name, head.kind}
  end

  defp tidy(info) do
    pairs = fn counts, value -> Enum.map(counts, &{value.(&1.value), &1.count}) end

    relabelled? = info.schema.name == "relabelled"

    %{
      Map.put(info, :relabelled, relabelled?)
      | schema: schema(info.schema),
        characters: pairs.(info.characters, &String.to_integer/1),
        stages: pairs.(info.stages, &String.to_integer/1),
        versions: pairs.(info.versions, &Function.identity/1)
    }
  end

  defp schema(%{name: "vector", size: size}), do: {:vector, size}
  defp schema(%{name: "melee"}), do: :melee
  defp schema(%{name: "game", game: game}), do: Declaration.from_native(game)
  defp schema(%{name: "relabelled", game: game}), do: Declaration.from_native(game)
  defp schema(%{name: "relabelled"}), do: :melee

  @doc "The packed frames of one player's game, each with the labels of the answer. The last ones have no answer."
  @spec recording(reference, non_neg_integer, 0 | 1) ::
          {:ok, [{binary, [number]}]} | {:error, Error.t()}
  def recording(handle, game, player) do
    with {:ok, {rows, numbers, labels, {width, words?}}} <-
           Native.corpus_recording(handle, game, player) do
      labels =
        if words?,
          do: for(<<label::16-little <- labels>>, do: label),
          else: for(<<label::float-32-little <- labels>>, do: label)

      {:ok, Enum.zip(frames(rows, numbers), Enum.chunk_every(labels, width))}
    end
  end

  @doc "The packed frames of one player's game, with the last ones."
  @spec states(reference, non_neg_integer, 0 | 1) :: {:ok, [binary]} | {:error, Error.t()}
  def states(handle, game, player) do
    with {:ok, {rows, numbers, _labels, _widths}} <-
           Native.corpus_recording(handle, game, player),
         do: {:ok, frames(rows, numbers)}
  end

  defp frames(rows, numbers) do
    size = 4 * numbers
    for <<row::binary-size(size) <- rows>>, do: row
  end
end
