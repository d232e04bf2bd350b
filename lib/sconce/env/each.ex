defmodule Sconce.Env.Each do
  @moduledoc false
  # Steps many environments of a `Sconce.Env.World`, one after the other.

  @behaviour Sconce.Env.Batch

  alias Sconce.Env.World
  alias Sconce.Mask

  @flags %{running: 0, terminated: 1, truncated: 2}

  @impl true
  def spec({module, options}), do: module.spec(options)

  @impl true
  def open(%{options: {module, options}, count: count}) do
    spec = World.described!(module, options)
    numbers = spec.parts |> Enum.map(&numbers(&1.type)) |> Enum.sum()
    parts = if spec.masks, do: Mask.of_input(spec.parts), else: []
    all = List.duplicate(Mask.all(parts), spec.seats)

    %{
      module: module,
      options: options,
      parts: Enum.map(spec.parts, &{&1.name, &1.type}),
      seats: spec.seats,
      # Bytes of the input of a seat.
      input: 4 * numbers,
      size: spec.observation_size,
      terms: spec.reward_terms,
      # An environment that takes no step.
      idle: {
        zeros(spec.seats * spec.observation_size),
        zeros(spec.seats * length(spec.reward_terms || [:reward])),
        0,
        all
      },
      states: List.duplicate(nil, count),
      # Parts with masks, the mask that allows everything, and the present mask of each environment.
      masked: parts,
      all: all,
      masks: if(parts == [], do: [], else: List.duplicate(all, count))
    }
  end

  defp zeros(n), do: :binary.copy(<<0.0::float-32-little>>, n)

  defp numbers({:flags, names}), do: length(names)
  defp numbers({:continuous, n, _min, _max}), do: n
  defp numbers(_type), do: 1

  @impl true
  def reset(begins, batch) do
    fresh =
      for begin <- begins, into: %{} do
        own = begin |> Map.delete(:at) |> Map.put(:options, batch.options)
        {observation, state} = batch.module.reset(own)

        {begin.at, {seen!(observation, batch), mask!(:running, state, batch), state}}
      end

    seen = for begin <- begins, do: elem(fresh[begin.at], 0)
    {masks, states} = {renewed(batch.masks, fresh, 1), renewed(batch.states, fresh, 2)}
    {seen, %{batch | states: states, masks: masks}}
  end

  # Replaces the entries of environments that begin by a field of theirs.
  defp renewed(all, fresh, field) do
    for {old, at} <- Enum.with_index(all),
        do: if(own = fresh[at], do: elem(own, field), else: old)
  end

  @impl true
  def step(inputs, active, batch) do
    size = batch.seats * batch.input
    inputs = for <<input::binary-size(size) <- inputs>>, do: input

    {results, states} =
      [inputs, :binary.bin_to_list(active), batch.states]
      |> Enum.zip_with(&one(&1, batch))
      |> Enum.unzip()

    {
      for({seen, _reward, _flag, _mask} <- results, do: seen),
      for({_seen, reward, _flag, _mask} <- results, do: reward),
      for({_seen, _reward, flag, _mask} <- results, do: flag),
      %{batch | states: states, masks: masks(results, batch)}
    }
  end

  defp one([_input, 0, state], batch), do: {batch.idle, state}

  defp one([input, 1, state], batch) do
    {observation, reward, over, state} = batch.module.step(inputs(input, batch), state)

    with nil <- @flags[over] do
      raise ArgumentError,
            "#{inspect(batch.module)}.step/2: expected :running, :terminated or :truncated, got: #{inspect(over)}"
    end

    reward = by_seat!(reward, batch, "rewards", &reward!(&1, batch))
    {{seen!(observation, batch), reward, @flags[over], mask!(over, state, batch)}, state}
  end

  defp seen!(observation, batch),
    do: by_seat!(observation, batch, "observations", &floats!(&1, batch.size, batch))

  # What a world gives for its only seat, or a list of it for several.
  defp by_seat!(given, %{seats: 1}, _what, pack), do: pack.(given)

  defp by_seat!(given, %{seats: seats}, _what, pack) when length(given) == seats,
    do: Enum.map(given, pack)

  defp by_seat!(other, %{seats: seats} = batch, what, _pack) do
    got = inspect(other, limit: 10, printable_limit: 40)

    raise ArgumentError,
          "#{what} of #{inspect(batch.module)}: expected a list of #{seats}, one for each seat, got: #{got}"
  end

  defp masks(_results, %{masked: []}), do: []
  defp masks(results, _batch), do: for({_seen, _reward, _flag, mask} <- results, do: mask)

  @impl true
  def action_masks(batch), do: batch.masks

  # A state that ends an episode need not allow anything.
  defp mask!(_over, _state, %{masked: []}), do: []
  defp mask!(over, _state, batch) when over != :running, do: batch.all

  defp mask!(:running, state, batch) do
    state |> batch.module.action_mask() |> by_seat!(batch, "masks", &packed!(&1, batch))
  end

  defp packed!(mask, batch) do
    case Mask.pack(batch.masked, mask) do
      {:ok, mask} ->
        mask

      {:error, %{what: what, expected: expected, got: got}} ->
        name = inspect(batch.module)
        raise ArgumentError, "#{what} of #{name}: expected #{expected}, got: #{got}"
    end
  end

  # The input of the only seat, or a list of those of several.
  defp inputs(input, %{seats: 1} = batch), do: named(batch.parts, input)

  defp inputs(inputs, %{input: size} = batch),
    do: for(<<input::binary-size(size) <- inputs>>, do: named(batch.parts, input))

  # The parts of an input by name.
  defp named(parts, input), do: parts |> named(input, []) |> Map.new()

  defp named([], "", all), do: all

  defp named([{name, type} | parts], input, all) do
    {value, rest} = value(type, input)
    named(parts, rest, [{name, value} | all])
  end

  defp value({:choice, _n}, <<number::float-32-little, rest::binary>>), do: {trunc(number), rest}

  defp value({:flags, names}, input) do
    Enum.reduce(names, {%{}, input}, fn name, {all, <<flag::float-32-little, rest::binary>>} ->
      {Map.put(all, name, flag == 1.0), rest}
    end)
  end

  defp value({:continuous, n, _min, _max}, input) when n > 1 do
    size = 4 * n
    <<own::binary-size(size), rest::binary>> = input
    {for(<<number::float-32-little <- own>>, do: number), rest}
  end

  defp value(_number, <<number::float-32-little, rest::binary>>), do: {number, rest}

  defp floats!(binary, size, _batch) when byte_size(binary) == 4 * size, do: binary

  defp floats!(list, size, _batch) when length(list) == size,
    do: for(number <- list, into: <<>>, do: <<number::float-32-little>>)

  defp floats!(other, size, batch) do
    got = inspect(other, limit: 10, printable_limit: 40)

    raise ArgumentError,
          "observation of #{inspect(batch.module)}: expected #{size} numbers, got: #{got}"
  end

  defp reward!(reward, %{terms: nil}) when is_number(reward), do: <<reward::float-32-little>>

  defp reward!(%{} = reward, %{terms: [_ | _] = terms} = batch) do
    for {name, _term} <- reward, name not in terms do
      raise ArgumentError, "reward of #{inspect(batch.module)}: no term #{inspect(name)}"
    end

    for term <- terms, into: <<>>, do: <<Map.get(reward, term, 0.0)::float-32-little>>
  end

  defp reward!(other, batch) do
    expected = if batch.terms, do: "a map of #{inspect(batch.terms)}", else: "a number"

    raise ArgumentError,
          "reward of #{inspect(batch.module)}: expected #{expected}, got: #{inspect(other)}"
  end

  @impl true
  def save(batch) do
    for state <- batch.states,
        do: if(plain?(state), do: :erlang.term_to_binary(state), else: "")
  end

  # A term that means the same in another VM.
  defp plain?([head | tail]), do: plain?(head) and plain?(tail)
  defp plain?(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> plain?()
  defp plain?(%{} = map), do: map |> Map.to_list() |> Enum.all?(&plain?/1)
  defp plain?(other), do: is_number(other) or is_atom(other) or is_bitstring(other) or other == []

  @impl true
  def restore(binaries, batch) do
    {taken, states} = batch.states |> Enum.zip(binaries) |> Enum.map(&restored/1) |> Enum.unzip()

    {taken, %{batch | states: states}}
  end

  defp restored({state, ""}), do: {false, state}

  defp restored({state, binary}) do
    {true, :erlang.binary_to_term(binary, [:safe])}
  rescue
    # It has an atom that no longer exists.
    ArgumentError -> {false, state}
  end
end
