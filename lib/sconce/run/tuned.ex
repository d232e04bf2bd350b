defmodule Sconce.Run.Tuned do
  @moduledoc false
  # The answers of `Sconce.Trainer.tune/2` and `Sconce.PPO.tune/1` in the cache of `Sconce.Tuner`: the measured sizes, and
  # the size with the most frames or steps a second.

  alias Sconce.{Error, Tuner}

  @turns 3

  @doc """
  Returns the native answer of a search, and whether it was `:measured` now or comes from the `:cache`.

  `search` has the `kind`, what was `asked` (any term), text `about` it, the atoms `size`, `seconds` and `speed` of a row, its
  `fields`, and the `facts` of an answer beside its rows. `run` searches: with nil as told, with a size only that one.
  `limit` is the memory of a run in bytes.
  """
  @spec recall(map, pos_integer | nil, boolean | nil, (pos_integer | nil -> answer)) ::
          {:ok, map, :measured | :cache} | {:error, Error.t()}
        when answer: {:ok, map} | {:error, Error.t()}
  def recall(search, limit, tuner, run) do
    if Tuner.on?(tuner) do
      key = Map.take(search, [:kind, :asked, :about])
      sweep = fn -> with {:ok, found} <- best(search, run), do: {:ok, to_entry(found, search)} end
      again = fn label -> again(String.to_integer(label), search, run) end

      with {:ok, choice} <- Tuner.recall(key, sweep, again, &holds(&1, search, limit)),
           do: {:ok, found(choice, search, limit), choice.from}
    else
      with {:ok, found} <- best(search, run), do: {:ok, found, :measured}
    end
  end

  # Several searches in turn. The best time of each size counts, because other load only makes them longer.
  defp best(search, run) do
    with {:ok, first} <- run.(nil), do: more(first, search, run, @turns - 1)
  end

  defp more(found, _search, _run, 0), do: {:ok, found}

  # With one size there is nothing to choose.
  defp more(%{rows: [_only]} = found, _search, _run, _turns), do: {:ok, found}

  defp more(found, search, run, turns) do
    with {:ok, other} <- run.(nil),
         do: found |> merged(other, search) |> more(search, run, turns - 1)
  end

  defp merged(found, other, %{size: size, seconds: seconds, speed: speed}) do
    rows =
      (found.rows ++ other.rows)
      |> Enum.group_by(& &1[size])
      |> Enum.sort()
      |> Enum.map(fn {_size, same} -> Enum.min_by(same, & &1[seconds]) end)

    longest = Enum.max_by([found, other], &length(&1.rows))
    best = Enum.max_by(rows, & &1[speed])
    Map.merge(longest, %{:rows => rows, size => best[size]})
  end

  defp to_entry(found, %{size: size} = search) do
    rows =
      for row <- found.rows do
        numbers = Map.new(search.fields, &{to_string(&1), Map.fetch!(row, &1)})
        {to_string(row[size]), Map.put(numbers, "us", 1.0e6 * row[search.seconds])}
      end

    notes = Map.new(search.facts, &{to_string(&1), to_string(Map.fetch!(found, &1))})
    {to_string(found[size]), rows, notes}
  end

  defp found(choice, search, limit) do
    rows =
      for {_label, numbers} <- choice.rows,
          do: Map.new(search.fields, &{&1, Map.fetch!(numbers, to_string(&1))})

    search.facts
    |> Map.new(&{&1, read(Map.fetch!(choice.notes, to_string(&1)))})
    |> Map.merge(%{:rows => rows, search.size => String.to_integer(choice.label)})
    |> Map.put(:memory_limit, limit)
  end

  defp read(text) do
    case Integer.parse(text) do
      {number, ""} -> number
      _text -> text
    end
  end

  defp again(number, %{size: size} = search, run) do
    with {:ok, %{rows: [row | _]}} <- run.(number) do
      if row[size] == number,
        do: {:ok, 1.0e6 * row[search.seconds]},
        else:
          {:error, %Error{kind: :out_of_memory, op: :tune, details: %{what: "#{size} #{number}"}}}
    end
  end

  # A size that no longer fits is not used. More memory allows larger sizes than those that were measured.
  defp holds(entry, search, limit) do
    cond do
      not whole?(entry, search) -> {:error, "it lacks numbers of a search"}
      limit == nil -> :ok
      true -> fits(entry, limit)
    end
  end

  defp whole?(entry, search) do
    fields = Enum.map(search.fields, &to_string/1)
    facts = Enum.map(search.facts, &to_string/1)

    match?({_number, ""}, Integer.parse(entry.choice)) and
      Enum.all?(entry.rows, fn {_label, numbers} ->
        Enum.all?(fields, &is_map_key(numbers, &1))
      end) and
      Enum.all?(facts, &is_map_key(entry.notes, &1))
  end

  defp fits(entry, limit) do
    {_label, %{"bytes" => chosen}} = List.keyfind(entry.rows, entry.choice, 0)
    {_label, %{"bytes" => largest}} = List.last(entry.rows)

    cond do
      chosen > limit ->
        {:error, "its choice needs #{chosen} bytes, and #{limit} are left"}

      entry.notes["stopped"] == "memory" and 2 * largest <= limit ->
        {:error, "more memory is left"}

      true ->
        :ok
    end
  end
end
