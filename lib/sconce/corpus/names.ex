defmodule Sconce.Corpus.Names do
  @moduledoc false
  # The names of Melee's characters and of the stages of tournaments, with the ids that a replay has.

  alias Sconce.Options

  # Character names, indexed by the internal id that a post-frame contains.
  @characters [
    "Mario",
    "Fox",
    "Captain Falcon",
    "Donkey Kong",
    "Kirby",
    "Bowser",
    "Link",
    "Sheik",
    "Ness",
    "Peach",
    "Popo",
    "Nana",
    "Pikachu",
    "Samus",
    "Yoshi",
    "Jigglypuff",
    "Mewtwo",
    "Luigi",
    "Marth",
    "Zelda",
    "Young Link",
    "Dr. Mario",
    "Falco",
    "Pichu",
    "Mr. Game & Watch",
    "Ganondorf",
    "Roy"
  ]

  # The stages of tournaments: their names and the ids that a replay has.
  @stages [
    {"Fountain of Dreams", 2},
    {"Pokémon Stadium", 3},
    {"Yoshi's Story", 8},
    {"Dream Land", 28},
    {"Battlefield", 31},
    {"Final Destination", 32}
  ]

  @doc "The name of an internal character id."
  @spec character(non_neg_integer) :: String.t()
  def character(id) when id in 0..unquote(length(@characters) - 1), do: Enum.at(@characters, id)
  def character(id) when is_integer(id), do: "character #{id}"
  def character(other), do: Options.argument!("character", other, "an id")

  @doc "The internal id of a character."
  @spec character_id(String.t()) :: {:ok, non_neg_integer} | :error
  def character_id(name) when is_binary(name) do
    case Enum.find_index(@characters, &(String.downcase(&1) == String.downcase(name))) do
      nil -> :error
      id -> {:ok, id}
    end
  end

  def character_id(other), do: Options.argument!("character", other, "a name")

  @doc "The error of a name that no character has."
  @spec unknown_character(term) :: String.t()
  def unknown_character(name), do: unknown(name, "character", @characters)

  @doc "The names of the stages."
  @spec stages() :: [String.t()]
  def stages, do: for({name, _id} <- @stages, do: name)

  @doc "The id of a stage."
  @spec stage_id(String.t()) :: {:ok, non_neg_integer} | :error
  def stage_id(name) when is_binary(name) do
    found =
      Enum.find(@stages, fn {stage, _id} -> String.downcase(stage) == String.downcase(name) end)

    with {_name, id} <- found || :error, do: {:ok, id}
  end

  def stage_id(other), do: Options.argument!("stage", other, "a name")

  @doc "The error of a name that no stage has."
  @spec unknown_stage(term) :: String.t()
  def unknown_stage(name), do: unknown(name, "stage", stages())

  defp unknown(name, kind, names) do
    case Options.nearest(name, names) do
      nil -> "no #{kind} #{inspect(name)}, expected one of #{Enum.join(names, ", ")}"
      near -> "no #{kind} #{inspect(name)}, did you mean #{inspect(near)}?"
    end
  end
end
