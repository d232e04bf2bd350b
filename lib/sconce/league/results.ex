defmodule Sconce.League.Results do
  @moduledoc false
  # Counts results of games that were played elsewhere: wins and draws of each pair, as matrices.

  alias Sconce.{Error, Options}
  alias Sconce.Monitor.Json

  @typedoc "Wins and draws, `[players][players]`; a row is that of the player with the same index."
  @type tally :: {[String.t()], [[non_neg_integer]], [[non_neg_integer]]}

  # The native side has 32 bits for the games of a pair.
  @most 0xFFFF_FFFF
  @most_players 256
  @forms "{player, player, :win | :loss | :draw}, {player, player, {wins, draws, losses}}, " <>
           "a map with players and winner, or a line of text with one of them"

  @doc "Counts results. `players` is a list of names in the order of the rows, or nil."
  @spec tally(Enumerable.t(), [term] | nil) :: {:ok, tally} | {:error, Error.t()}
  def tally(results, players) do
    names = players && players!(players)
    known = names && MapSet.new(names)

    results
    |> Stream.with_index(1)
    |> Enum.reduce_while({:ok, %{}}, fn {result, i}, {:ok, pairs} ->
      case add(pairs, result, known) do
        {:error, details} -> {:halt, {:error, error(details, i)}}
        counted -> {:cont, {:ok, counted}}
      end
    end)
    |> case do
      {:ok, pairs} -> matrices(pairs, names || seen(pairs))
      refused -> refused
    end
  rescue
    error in Protocol.UndefinedError ->
      expected = "an enumerable of results"
      Options.enumerable!(error, results, "results", expected, __STACKTRACE__)
  end

  defp players!(players) do
    names =
      for player <- players do
        name(player) || Options.argument!("option :players", player, "names as text or atoms")
      end

    for name <- names -- Enum.uniq(names),
        do: raise(ArgumentError, "option :players: #{inspect(name)} is there twice")

    names
  end

  defp seen(pairs),
    do: pairs |> Map.keys() |> Enum.flat_map(&Tuple.to_list/1) |> Enum.uniq() |> Enum.sort()

  defp error(details, i) do
    details = Map.update(details, :what, "result #{i}", &"result #{i}: #{&1}")
    %Error{kind: :mismatch, op: :rate, details: details}
  end

  # Adds a result to the counts of its pair, `{wins, draws, losses}` of the player whose name sorts first.
  defp add(pairs, result, known) do
    with {:ok, a, b, counts} <- read(result),
         :ok <- known(a, known),
         :ok <- known(b, known) do
      {key, {wins, draws, losses}} =
        if a < b, do: {{a, b}, counts}, else: {{b, a}, swapped(counts)}

      Map.update(pairs, key, {wins, draws, losses}, fn {w, d, l} ->
        {w + wins, d + draws, l + losses}
      end)
    else
      :blank -> pairs
      {:error, details} -> {:error, details}
    end
  end

  defp swapped({wins, draws, losses}), do: {losses, draws, wins}

  defp known(_name, nil), do: :ok

  defp known(name, known) do
    if name in known,
      do: :ok,
      else: refuse("player", "one of the option :players", inspect(name))
  end

  # Returns both names and the counts of the first one.
  defp read({a, b, outcome}) do
    with {:ok, a, b} <- pair(a, b), {:ok, counts} <- counts(outcome), do: {:ok, a, b, counts}
  end

  defp read(%{} = result) do
    with [a, b] <- field(result, :players),
         {:ok, winner} <- winner(result),
         {:ok, a, b} <- pair(a, b),
         {:ok, counts} <- won(winner, a, b) do
      {:ok, a, b, counts}
    else
      {:error, details} -> {:error, details}
      other -> refuse("players", "a list of two names", shown(other))
    end
  end

  defp read(line) when is_binary(line) do
    case String.trim(line) do
      "" -> :blank
      "{" <> _ = json -> json(json)
      text -> text |> String.split(",") |> Enum.map(&String.trim/1) |> columns()
    end
  end

  defp read(other), do: refuse(nil, @forms, shown(other))

  defp json(text) do
    case Json.decode(text) do
      {:ok, %{} = result} -> read(result)
      {:error, reason} -> refuse("JSON", "an object", reason)
    end
  end

  defp columns([a, b, outcome]), do: read({a, b, outcome})
  defp columns(other), do: refuse("line", "player,player,outcome", "#{length(other)} columns")

  defp field(result, name) do
    case result do
      %{^name => value} -> value
      _ -> Map.get(result, Atom.to_string(name))
    end
  end

  # A draw must be said: a map without a winner may be a game that is not over.
  defp winner(result) do
    if Map.has_key?(result, :winner) or Map.has_key?(result, "winner"),
      do: {:ok, field(result, :winner)},
      else: refuse("winner", "a name, or nil for a draw", "no such key")
  end

  defp won(nil, _a, _b), do: {:ok, {0, 1, 0}}

  defp won(winner, a, b) do
    case name(winner) do
      ^a -> {:ok, {1, 0, 0}}
      ^b -> {:ok, {0, 0, 1}}
      _other -> refuse("winner", "one of the players, or nil for a draw", shown(winner))
    end
  end

  defp pair(a, b) do
    case {name(a), name(b)} do
      {nil, _b} -> refuse("player", "a name as text or an atom", shown(a))
      {_a, nil} -> refuse("player", "a name as text or an atom", shown(b))
      {same, same} -> refuse("players", "two", "#{inspect(same)} against itself")
      {a, b} -> {:ok, a, b}
    end
  end

  defp name(name) when is_atom(name) and name not in [nil, true, false], do: Atom.to_string(name)
  defp name(name) when is_binary(name) and name != "", do: if(String.valid?(name), do: name)
  defp name(_other), do: nil

  defp counts(outcome) when outcome in [:win, "win"], do: {:ok, {1, 0, 0}}
  defp counts(outcome) when outcome in [:draw, "draw"], do: {:ok, {0, 1, 0}}
  defp counts(outcome) when outcome in [:loss, "loss"], do: {:ok, {0, 0, 1}}

  defp counts({wins, draws, losses} = counts)
       when wins in 0..@most and draws in 0..@most and losses in 0..@most,
       do: {:ok, counts}

  defp counts(other) do
    refuse("outcome", ":win, :loss, :draw or {wins, draws, losses}", shown(other))
  end

  defp refuse(nil, expected, got), do: {:error, %{expected: expected, got: got}}
  defp refuse(what, expected, got), do: {:error, %{what: what, expected: expected, got: got}}

  defp shown(term), do: inspect(term, limit: 5, printable_limit: 60)

  defp matrices(_pairs, names) when length(names) not in 2..@most_players,
    do: {:error, out_of_range("players", length(names), 2, @most_players)}

  defp matrices(pairs, names) do
    case Enum.find(pairs, fn {_pair, {w, d, l}} -> w + d + l > @most end) do
      nil ->
        {:ok, {names, matrix(names, pairs, &elem(&1, 0)), matrix(names, pairs, &elem(&1, 1))}}

      {{a, b}, {w, d, l}} ->
        {:error, out_of_range("games of #{a} and #{b}", w + d + l, 0, @most)}
    end
  end

  defp matrix(names, pairs, count) do
    for a <- names do
      for b <- names do
        case pairs do
          %{{^a, ^b} => counts} -> count.(counts)
          %{{^b, ^a} => counts} -> counts |> swapped() |> count.()
          _ -> 0
        end
      end
    end
  end

  defp out_of_range(field, value, min, max) do
    details = %{field: field, value: value, min: min, max: max}
    %Error{kind: :out_of_range, op: :rate, details: details}
  end

  @doc "Groups of players, by their indices: players of different groups have met neither directly nor through others."
  @spec groups([[non_neg_integer]], [[non_neg_integer]]) :: [[non_neg_integer]]
  def groups(wins, draws) do
    met =
      for {wins, draws} <- Enum.zip(wins, draws) do
        for {{won, drawn}, j} <- Enum.with_index(Enum.zip(wins, draws)), won + drawn > 0, do: j
      end

    edges = for {others, i} <- Enum.with_index(met), j <- others, do: {i, j}
    joined = Enum.reduce(edges, Map.new(0..(length(met) - 1), &{&1, &1}), &join/2)

    joined
    |> Enum.group_by(&elem(&1, 1), &elem(&1, 0))
    |> Map.values()
    |> Enum.map(&Enum.sort/1)
    |> Enum.sort()
  end

  # Gives the players of both groups the smaller number.
  defp join({i, j}, groups) do
    case {groups[i], groups[j]} do
      {same, same} ->
        groups

      {one, other} ->
        {low, high} = {min(one, other), max(one, other)}

        Map.new(groups, fn {player, group} ->
          {player, if(group == high, do: low, else: group)}
        end)
    end
  end
end
