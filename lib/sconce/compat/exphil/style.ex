defmodule Sconce.Compat.ExPhil.Style do
  @moduledoc false
  # The id of a player's style, given or by a tag of ExPhil's player registry.

  alias Sconce.Error
  alias Sconce.Monitor.Json

  @doc "The id of the options `:style_id`, `:style_tag` and `:player_registry`; 0 without them."
  @spec id(keyword) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def id(options) do
    case {options[:style_id], options[:style_tag]} do
      {nil, nil} -> {:ok, 0}
      {nil, tag} -> of_file(options[:player_registry], tag)
      {id, _tag} -> {:ok, id}
    end
  end

  defp of_file(path, tag) do
    with {:ok, text} <- File.read(path),
         {:ok, %{"players" => players} = registry} when length(players) >= 0 <- decode(text) do
      of_registry(registry, players, tag, path)
    else
      {:error, :enoent} ->
        {:error, error(:not_found, %{what: path})}

      {:error, reason} when is_atom(reason) ->
        {:error, error(:io, reasoned(path, reason))}

      _other ->
        {:error, error(:corrupt, %{what: path, reason: "not a player registry of ExPhil"})}
    end
  end

  defp decode(text), do: if(String.valid?(text), do: Json.decode(text), else: {:ok, nil})

  defp reasoned(path, reason),
    do: %{path: path, reason: reason |> :file.format_error() |> to_string()}

  defp of_registry(registry, players, tag, path) do
    most = with n when not is_integer(n) or n < 1 <- registry["max_players"], do: 112

    case {players |> Enum.take(most) |> Enum.find_index(&(&1 == tag)),
          registry["unknown_strategy"]} do
      {nil, "default"} -> {:ok, 0}
      {nil, "hash"} -> {:ok, :erlang.phash2(tag, most)}
      {nil, _none} -> {:error, error(:not_found, %{what: "player #{tag} of #{path}"})}
      {id, _strategy} -> {:ok, id}
    end
  end

  defp error(kind, details), do: %Error{kind: kind, op: :start_link, details: details}
end
