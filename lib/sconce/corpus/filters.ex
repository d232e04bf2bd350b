defmodule Sconce.Corpus.Filters do
  @moduledoc false
  # The options that select games and views, of an import, a run and a stream, in their native form.

  alias Sconce.Corpus.Names

  @names ~w(characters players stages min_frames max_frames min_damage_dealt min_damage_taken humans unique
            min_quality dual_port)a

  @doc "Returns the names of the options."
  @spec names() :: [atom]
  def names, do: @names

  @doc "Converts the options to their native form; missing options stay missing."
  @spec native(map) :: map
  def native(options) do
    options
    |> Map.replace_lazy(:players, &(&1 || []))
    |> Map.replace_lazy(:characters, fn all -> Enum.map(all || [], &character!/1) end)
    |> Map.replace_lazy(:stages, fn all -> Enum.map(all || [], &stage!/1) end)
  end

  defp character!(id) when id in 0..255, do: id

  defp character!(name) do
    case is_binary(name) && Names.character_id(name) do
      {:ok, id} -> id
      _unknown -> raise ArgumentError, "option :characters: #{Names.unknown_character(name)}"
    end
  end

  defp stage!(id) when id in 0..0xFFFF, do: id

  defp stage!(name) do
    case is_binary(name) && Names.stage_id(name) do
      {:ok, id} -> id
      _unknown -> raise ArgumentError, "option :stages: #{Names.unknown_stage(name)}"
    end
  end
end
