defmodule Sconce.Mask do
  @moduledoc false
  # Action masks as the native side reads them: an entry for each class and each flag of an input, in the order of its
  # parts; 1 for one that is allowed and 0 for one that is not. Numbers have no entries.

  alias Sconce.Game
  alias Sconce.Policy.Spec

  @typedoc "A part of an input: its name, and its flags, its number of bits or classes, or `:numbers`."
  @type part ::
          {Spec.head_name(),
           {:flags, [atom | String.t()]}
           | {:bits, pos_integer}
           | {:classes, pos_integer}
           | :numbers}

  @controller [:a, :b, :x, :y, :z, :l, :r, :d_up]

  @doc "Returns the parts of an input of a game."
  @spec of_input([map]) :: [part]
  def of_input(parts), do: Enum.map(parts, &{&1.name, shape(&1)})

  defp shape(%{type: {:flags, names}}), do: {:flags, names}
  defp shape(%{type: {:choice, n}}), do: {:classes, n}
  defp shape(%{type: {:axis, _min, _max}, steps: steps}), do: {:classes, steps}
  defp shape(%{type: {:continuous, _n, _min, _max}}), do: :numbers

  @doc "Returns the parts that the heads of a policy choose."
  @spec of_heads(Spec.t()) :: [part]
  def of_heads(%Spec{heads: heads} = spec) do
    named = if Spec.reads_inputs?(spec), do: spec |> flags() |> Map.new(), else: %{}
    for %{name: name, kind: kind} <- heads, do: {name, named[name] || of_kind(kind)}
  end

  defp flags(%Spec{embedding: {%Game{input: input}, _options}, heads: heads}),
    do:
      for(
        {%{type: {:flags, _}} = part, head} <- Enum.zip(input, heads),
        do: {head.name, shape(part)}
      )

  defp flags(%Spec{heads: [buttons | _]}), do: [{buttons.name, {:flags, @controller}}]

  defp of_kind({:bernoulli, n}), do: {:bits, n}
  defp of_kind({:categorical, n}), do: {:classes, n}
  defp of_kind(_numbers), do: :numbers

  @doc "Returns the mask that allows everything."
  @spec all([part]) :: [1]
  def all(parts), do: List.duplicate(1, parts |> Enum.map(&size(elem(&1, 1))) |> Enum.sum())

  defp size({:flags, names}), do: length(names)
  defp size({_kind, n}), do: n
  defp size(:numbers), do: 0

  @doc """
  Returns the entries of a mask: a map of parts, of which those that are missing are allowed, or a list of all entries.
  The details of an error name the part.
  """
  @spec pack([part], term) :: {:ok, [0 | 1]} | {:error, map}
  def pack(parts, mask) do
    {:ok, entries(parts, mask)}
  catch
    {:refused, what, expected, got} ->
      got = if is_binary(got), do: got, else: inspect(got, limit: 20, printable_limit: 80)
      {:error, %{what: what, expected: expected, got: got}}
  end

  defp entries(parts, mask) when is_map(mask) and not is_struct(mask) do
    {entries, rest} =
      Enum.flat_map_reduce(parts, mask, fn {name, shape}, mask ->
        {own, mask} = Map.pop(mask, key(mask, name))
        {entries_of(shape, own, name), mask}
      end)

    for {name, _own} <- rest, do: refuse("mask", parts_text(parts), "#{inspect(name)}")
    entries
  end

  defp entries(parts, mask) when length(mask) >= 0 do
    size = length(all(parts))
    length(mask) == size || refuse("mask", "#{size} entries", "#{length(mask)}")

    {entries, []} =
      Enum.flat_map_reduce(parts, mask, fn {name, shape}, mask ->
        {own, rest} = Enum.split(mask, size(shape))
        {if(own == [], do: [], else: entries_of(shape, own, name)), rest}
      end)

    entries
  end

  defp entries(parts, other), do: refuse("mask", parts_text(parts), other)

  defp parts_text(parts), do: "a map of #{Enum.map_join(parts, ", ", &Spec.text(elem(&1, 0)))}"

  # A name may be given as an atom or as text.
  defp key(mask, name) when is_map_key(mask, name), do: name

  defp key(mask, name) do
    text = Spec.text(name)
    Enum.find(Map.keys(mask), name, &(Spec.text(&1) == text))
  end

  defp entries_of(shape, nil, _name), do: List.duplicate(1, size(shape))

  defp entries_of(:numbers, own, name),
    do: refuse("mask of #{name}", "none, because a number has no mask", own)

  defp entries_of({:flags, names}, own, name) when is_map(own) and not is_struct(own) do
    {entries, rest} =
      Enum.map_reduce(names, own, fn flag, own ->
        {allowed, own} = Map.pop(own, key(own, flag), true)
        {entry(allowed, name), own}
      end)

    for {flag, _own} <- rest,
        do: refuse("mask of #{name}", "flags #{Enum.join(names, ", ")}", "#{inspect(flag)}")

    entries
  end

  defp entries_of(shape, own, name) when length(own) >= 0 do
    entries = Enum.map(own, &entry(&1, name))
    length(entries) == size(shape) || refuse_size(shape, name, "#{length(own)}")

    if match?({:classes, _n}, shape) and 1 not in entries,
      do: refuse("mask of #{name}", "a class that is allowed", "none")

    entries
  end

  defp entries_of(shape, own, name), do: refuse_size(shape, name, own)

  defp refuse_size(shape, name, got),
    do: refuse("mask of #{name}", "#{size(shape)} booleans", got)

  defp entry(allowed, _name) when allowed in [true, 1], do: 1
  defp entry(allowed, _name) when allowed in [false, 0], do: 0
  defp entry(other, name), do: refuse("mask of #{name}", "booleans", other)

  @spec refuse(String.t(), String.t(), term) :: no_return
  defp refuse(what, expected, got), do: throw({:refused, what, expected, got})
end
