defmodule Sconce.Dagger.Row do
  @moduledoc false
  # Rows of relabelled frames: the raw row, the raw values of the expert's input, and the weight. The game is `:melee` or
  # a `Sconce.Game`.

  alias Sconce.{Error, Frame, Game, Options}
  alias Sconce.Game.Declaration

  @type game :: :melee | Game.t()

  # A controller at rest: eight buttons, two sticks, the shoulder.
  @rest List.duplicate(0.0, 8) ++ [0.5, 0.5, 0.5, 0.5, 0.0]

  @spec game!(term) :: game
  def game!(:melee), do: :melee

  def game!(game) do
    Game.game?(game) || Options.argument!("option :game", game, ":melee or a Sconce.Game")
    %Game{input: input} = game = Game.of!(game)
    input != [] || Options.argument!("option :game", game, "a game with an input")
    game
  end

  @doc "The schema of a corpus, in its native form."
  @spec schema(game) :: map
  def schema(:melee), do: %{name: "relabelled"}
  def schema(game), do: %{name: "relabelled", game: Declaration.to_native(game)}

  @spec pack(game, term) :: {:ok, binary} | {:error, Error.t()}
  def pack(:melee, row), do: Frame.pack(row)
  def pack(game, row), do: Game.Frame.pack(game, row)

  @spec unpack(game, binary) :: {:ok, map} | {:error, Error.t()}
  def unpack(:melee, row), do: Frame.unpack(row)
  def unpack(game, row), do: Game.Frame.unpack(game, row)

  @doc "The raw values of an answer, nil for none."
  @spec input(game, term, String.t()) :: {:ok, binary | nil} | {:error, Error.t()}
  def input(_game, :skip, _what), do: {:ok, nil}
  def input(:melee, answer, what), do: Frame.input(answer, what)
  def input(game, answer, what), do: Game.Frame.input_row(game, answer, what)

  @doc "The row of a corpus. A frame without an answer has the weight 0 and any valid input."
  @spec labelled(game, binary, binary | nil) :: iodata
  def labelled(game, row, nil), do: [row, floats(least(game)), floats([0.0])]
  def labelled(_game, row, input), do: [row, input, floats([1.0])]

  defp least(:melee), do: @rest
  defp least(game), do: Enum.flat_map(game.input, &least_of(&1.type))

  defp least_of({:flags, names}), do: Enum.map(names, fn _name -> 0.0 end)
  defp least_of({:axis, min, _max}), do: [min]
  defp least_of({:choice, _n}), do: [0.0]
  defp least_of({:continuous, n, min, _max}), do: List.duplicate(min, n)

  defp floats(numbers), do: for(number <- numbers, into: <<>>, do: <<number::float-32-little>>)

  @doc "The input that led to a frame as labels for these heads, nil if it is unknown."
  @spec previous(game, binary, [map]) :: [number] | nil
  def previous(game, row, heads) do
    {at, parts} = place(game)
    size = 4 * Enum.sum(for {_range, numbers} <- parts, do: numbers)

    case row do
      <<_fields::binary-size(at), 1.0::float-32-little, input::binary-size(size), _rest::binary>> ->
        numbers = for <<number::float-32-little <- input>>, do: number
        labels(parts, heads, numbers)

      _unknown ->
        nil
    end
  end

  @previous 4 * Enum.find_index(Frame.columns(), &(&1 == "prev_exists"))
  @controller [{:bits, 8} | List.duplicate({{0.0, 1.0}, 1}, 5)]

  # The place of the flag of the previous input in bytes, and the range and the numbers of each part of the input.
  defp place(:melee), do: {@previous, @controller}

  defp place(game) do
    parts = Enum.map(game.input, &part(&1.type))
    all = game |> Game.Frame.bytes()
    {all - 4 * (1 + Enum.sum(for {_range, numbers} <- parts, do: numbers)), parts}
  end

  defp part({:flags, names}), do: {:bits, length(names)}
  defp part({:axis, min, max}), do: {{min, max}, 1}
  defp part({:choice, _n}), do: {:class, 1}
  defp part({:continuous, n, _min, _max}), do: {:numbers, n}

  defp labels(parts, heads, numbers) do
    {labels, []} =
      parts
      |> Enum.zip(heads)
      |> Enum.flat_map_reduce(numbers, fn {{kind, n}, head}, numbers ->
        {own, rest} = Enum.split(numbers, n)
        {Enum.map(own, &label(kind, head.kind, &1)), rest}
      end)

    labels
  end

  # The class that the native side takes.
  defp label({min, max}, {:categorical, classes}, value) do
    share = ((value - min) / (max - min)) |> max(0.0) |> min(1.0)
    trunc(share * (classes - 1) + 0.5)
  end

  defp label(:numbers, _kind, value), do: value
  defp label(_whole, _kind, value), do: trunc(value)

  @doc "The error with the place of the frame."
  @spec located(Error.t(), String.t()) :: Error.t()
  def located(error, at) do
    details =
      Map.new(error.details, fn
        {key, text} when key in [:what, :field] and is_binary(text) -> {key, at <> text}
        other -> other
      end)

    %{error | op: :relabel, details: details}
  end
end
