defmodule Sconce.Game.Frame do
  @moduledoc false
  # Converts frames and inputs of a declared game to raw numbers, and choices of heads to inputs.

  alias Sconce.{Action, Error, Game}
  alias Sconce.Policy.Spec

  # The largest number that a 32-bit float holds.
  @max 3.4028234e38

  @doc """
  Returns the raw row of a frame: its fields, then its previous action. A binary is taken as a packed row; only its size
  is checked.
  """
  @spec pack(Game.t(), term) :: {:ok, binary} | {:error, Error.t()}
  def pack(%Game{} = game, row) when is_binary(row) do
    size = bytes(game)

    if byte_size(row) == size,
      do: {:ok, row},
      else: {:error, mismatch("frame", "#{size} bytes", "#{byte_size(row)} bytes")}
  end

  def pack(%Game{} = game, frame) when is_map(frame) do
    fields = fields(game, frame)
    {:ok, IO.iodata_to_binary([fields, previous(game, get(frame, :previous_action))])}
  catch
    {:refused, error} -> {:error, error}
  end

  def pack(_game, other),
    do: {:error, mismatch("frame", "a frame, a map or a binary", shown(other))}

  @doc """
  Returns one row of a corpus: fields, input, and further columns.
  """
  @spec row(Game.t(), [atom], term) :: {:ok, iodata} | {:error, Error.t()}
  def row(game, beside, %{} = row) do
    frame = get(row, :frame) || refuse(missing("frame"))
    is_map(frame) || refuse(mismatch("frame", "a map", shown(frame)))
    input = get(row, :input) || refuse(missing("input"))

    {:ok,
     [fields(game, frame), input(game, input, ""), for(name <- beside, do: beside(row, name))]}
  catch
    {:refused, error} -> {:error, error}
  end

  def row(_game, _beside, other),
    do: {:error, mismatch("row", "a map with frame and input", shown(other))}

  defp beside(row, name) do
    case get(row, name) do
      nil when name == :weight -> float(1)
      nil when name == :end -> float(0)
      nil -> refuse(missing("#{name}"))
      value -> number(value, "#{name}")
    end
  end

  @doc "Returns the bytes of a raw row."
  @spec bytes(Game.t()) :: pos_integer
  def bytes(game), do: 4 * (numbers(game.fields) + previous_numbers(game))

  @doc "Returns the frame of a raw row as a map of its fields and `previous_action`, which is nil if it is unknown."
  @spec unpack(Game.t(), binary) :: {:ok, map} | {:error, Error.t()}
  def unpack(%Game{fields: fields, input: input}, row) do
    {frame, rest} = Enum.map_reduce(fields, row, &taken/2)

    previous =
      case rest do
        <<1.0::float-32-little, numbers::binary>> ->
          {parts, ""} = Enum.map_reduce(input, numbers, &taken/2)
          Map.new(parts)

        _unknown ->
          nil
      end

    {:ok, frame |> Map.new() |> Map.put(:previous_action, previous)}
  catch
    {:refused, error} -> {:error, error}
  end

  # The value of a field or a part at the start of a row, and the rest of the row.
  defp taken(%{name: name, type: type}, row) do
    size = 4 * numbers_of(type)
    <<own::binary-size(size), rest::binary>> = row
    # NaN and infinities match no float.
    values = for <<number::float-32-little <- own>>, do: number
    length(values) == numbers_of(type) || refuse(mismatch("#{name}", "finite numbers", "others"))
    {{name, typed(type, values)}, rest}
  end

  defp numbers_of({:vector, n}), do: n
  defp numbers_of({:flags, names}), do: length(names)
  defp numbers_of({:continuous, n, _min, _max}), do: n
  defp numbers_of(_type), do: 1

  defp typed({:flags, names}, bits),
    do: names |> Enum.zip(bits) |> Map.new(fn {name, bit} -> {name, bit == 1.0} end)

  defp typed({:vector, _n}, numbers), do: numbers
  defp typed({:continuous, n, _min, _max}, numbers) when n > 1, do: numbers
  defp typed(:flag, [bit]), do: bit == 1.0
  defp typed({kind, _n}, [id]) when kind in [:id, :one_hot, :choice], do: trunc(id)
  defp typed(_type, [number]), do: number

  @doc "Returns the raw values of an input; `what` names it in errors."
  @spec input_row(Game.t(), term, String.t()) :: {:ok, binary} | {:error, Error.t()}
  def input_row(game, input, what) do
    {:ok, game |> input(input, "#{what}.") |> IO.iodata_to_binary()}
  catch
    {:refused, error} -> {:error, error}
  end

  defp numbers(fields), do: fields |> Enum.map(&width/1) |> Enum.sum()
  defp width(%{type: {:vector, n}}), do: n
  defp width(_field), do: 1

  defp previous_numbers(%{input: []}), do: 0

  defp previous_numbers(%{input: input}),
    do: 1 + (input |> Enum.map(&numbers_of(&1.type)) |> Enum.sum())

  @doc "Returns a synthetic frame for measurements; different numbers give different frames."
  @spec made(Game.t(), pos_integer) :: map
  def made(%Game{fields: fields}, i) do
    for {field, k} <- Enum.with_index(fields),
        into: %{},
        do: {field.name, made_of(field.type, i + k)}
  end

  defp made_of(:flag, i), do: rem(i, 2)
  defp made_of({:range, min, max}, i), do: min + (max - min) * rem(i, 11) / 10
  defp made_of({kind, n}, i) when kind in [:id, :one_hot], do: rem(i, n)
  defp made_of({:vector, n}, i), do: for(k <- 1..n, do: :math.sin(i * k))
  defp made_of(:number, i), do: :math.sin(i)

  # Fields

  defp fields(game, frame), do: Enum.map(game.fields, &field(&1, get(frame, &1.name)))

  defp field(%{name: name, default: nil}, nil), do: refuse(missing("#{name}"))
  defp field(%{default: default} = field, nil), do: field(%{field | default: nil}, default)

  defp field(%{name: name, type: {:vector, n}}, values) when is_binary(values) do
    if byte_size(values) == 4 * n,
      do: values,
      else: refuse(mismatch("#{name}", "#{4 * n} bytes", "#{byte_size(values)} bytes"))
  end

  # A single number is repeated for the whole vector.
  defp field(%{name: name, type: {:vector, n}}, value) when is_number(value),
    do: List.duplicate(number(value, "#{name}"), n)

  defp field(%{name: name, type: {:vector, n}}, values) do
    if is_list(values) and length(values) == n,
      do: for({value, i} <- Enum.with_index(values), do: number(value, "#{name}[#{i}]")),
      else: refuse(mismatch("#{name}", "#{n} numbers", shown(values)))
  end

  defp field(%{name: name}, value), do: number(value, "#{name}")

  # Inputs

  defp previous(%{input: []}, _action), do: []
  defp previous(game, nil), do: <<0::size(previous_numbers(game) * 32)>>

  defp previous(game, %Action{input: nil}),
    do: refuse(mismatch("previous_action", "an input of #{game.name}", "a controller's"))

  defp previous(game, %Action{input: input}), do: previous(game, input)
  defp previous(game, %{} = input), do: [float(1), input(game, input, "previous_action.")]

  defp previous(_game, other),
    do: refuse(mismatch("previous_action", "an input or nil", shown(other)))

  defp input(game, %Action{input: %{} = input}, at), do: input(game, input, at)

  defp input(game, %{} = input, at),
    do: for(part <- game.input, do: part(part, get(input, part.name), "#{at}#{part.name}"))

  defp input(_game, other, at), do: refuse(mismatch("#{at}input", "a map", shown(other)))

  defp part(%{rest: nil, type: {kind, _}}, nil, what) when kind != :flags,
    do: refuse(missing(what))

  defp part(%{rest: nil, type: {:axis, _min, _max}}, nil, what), do: refuse(missing(what))
  defp part(%{rest: nil, type: {:continuous, _, _, _}}, nil, what), do: refuse(missing(what))

  defp part(%{type: {:flags, names}}, held, what) do
    Enum.each(unknown(held, names), &refuse(mismatch(what, "its buttons", shown(&1))))
    for name <- names, do: number(held?(held, name), "#{what}.#{name}")
  end

  defp part(%{rest: rest, type: {:continuous, n, _, _}} = part, nil, what),
    do: part(%{part | rest: nil}, List.duplicate(rest, n), what)

  defp part(%{rest: rest} = part, nil, what), do: part(%{part | rest: nil}, rest, what)

  defp part(%{type: {:continuous, n, _min, _max}}, values, what) when length(values) == n,
    do: for({value, i} <- Enum.with_index(values), do: number(value, "#{what}[#{i}]"))

  defp part(%{type: {:continuous, n, _min, _max}}, other, what) when n > 1,
    do: refuse(mismatch(what, "#{n} numbers", shown(other)))

  defp part(_part, value, what), do: number(value, what)

  defp held?(nil, _name), do: false

  defp held?(held, name) when is_list(held),
    do: Enum.any?(held, &(Spec.text(&1) == Spec.text(name)))

  defp held?(held, name), do: get(held, name) || false

  defp unknown(nil, _names), do: []

  defp unknown(held, names) when is_list(held) or is_map(held) do
    known = Enum.map(names, &Spec.text/1)
    given = if is_map(held), do: Map.keys(held), else: held
    Enum.reject(given, &(Spec.text(&1) in known))
  end

  defp unknown(held, _names), do: [held]

  @doc "Converts the choices of heads to an input, by the names of its parts."
  @spec chosen(Game.t(), [map], map) :: map
  def chosen(%Game{input: input}, heads, choices) do
    input
    |> Enum.zip(heads)
    |> Map.new(fn {part, head} ->
      {part.name, choice(part, head.kind, Map.fetch!(choices, head.name))}
    end)
  end

  defp choice(%{type: {:flags, names}}, _kind, bits),
    do: names |> Enum.zip(bits) |> Map.new(fn {name, bit} -> {name, bit == 1} end)

  defp choice(%{type: {:axis, min, max}}, {:categorical, n}, label),
    do: min + label / (n - 1) * (max - min)

  defp choice(%{type: {:choice, _n}}, _kind, label), do: label
  defp choice(%{type: {:continuous, 1, _min, _max}}, _kind, [number]), do: number
  defp choice(%{type: {:continuous, _n, _min, _max}}, _kind, numbers), do: numbers

  # Numbers

  defp get(map, name) when is_atom(name) do
    case map do
      %{^name => value} -> value
      _ -> Map.get(map, Atom.to_string(name))
    end
  end

  # A name from a file stays text if this VM had no such atom.
  defp get(map, name) do
    case map do
      %{^name => value} -> value
      _ -> Enum.find_value(map, fn {key, value} -> if Spec.text(key) == name, do: value end)
    end
  end

  defp number(value, _what) when is_float(value) and abs(value) <= @max, do: float(value)
  defp number(value, _what) when is_integer(value) and abs(value) <= @max, do: float(value)
  defp number(true, _what), do: float(1)
  defp number(false, _what), do: float(0)

  defp number(value, what) when value in [:nan, :infinity, :neg_infinity],
    do: refuse(error(:non_finite, %{what: what, value: value}))

  defp number(value, what) when is_number(value),
    do: refuse(error(:out_of_range, %{field: what, value: value, min: -@max, max: @max}))

  defp number(value, what), do: refuse(mismatch(what, "a number", shown(value)))

  defp float(value), do: <<value::float-32-little>>

  @spec refuse(Error.t()) :: no_return
  defp refuse(error), do: throw({:refused, error})

  defp missing(what), do: error(:not_found, %{what: what})

  defp mismatch(what, expected, got),
    do: error(:mismatch, %{what: what, expected: expected, got: got})

  defp error(kind, details), do: %Error{kind: kind, op: :frame, details: details}
  defp shown(term), do: inspect(term, limit: 20, printable_limit: 80)
end
