defmodule Sconce.Bot.Row do
  @moduledoc false
  # Reads and writes packed frames of Melee (`Sconce.Frame.pack/1`) at fixed places.

  alias Sconce.{Action, Frame}

  at = fn name -> 4 * Enum.find_index(Frame.columns(), &(&1 == name)) end

  @percent at.("own.percent")
  @action at.("own.action")
  @on_ground at.("own.on_ground")
  @stock at.("own.stock")
  @opponents at.("opponent.percent") - @percent
  @number at.("frame")
  @previous at.("prev_exists")
  # The eight buttons, four axes and the shoulder after the flag.
  @input at.("projectile_count") - @previous - 4
  @buttons [:a, :b, :x, :y, :z, :l, :r, :d_up]

  @doc "Whether all numbers are finite. The form is that of any packed frame."
  @spec finite?(binary) :: boolean
  def finite?(row), do: for(<<_::16, 1::1, _::8, 127::7 <- row>>, do: :not_finite) == []

  @doc "Percents and stocks of both players, the own one first."
  @spec score(binary) :: {{float, float}, {integer, integer}}
  def score(row) do
    {{number(row, @percent), number(row, @percent + @opponents)},
     {trunc(number(row, @stock)), trunc(number(row, @stock + @opponents))}}
  end

  @doc "The own player's action state, and whether the player is on the ground."
  @spec ground(binary) :: {float, boolean}
  def ground(row), do: {number(row, @action), number(row, @on_ground) > 0.5}

  @doc "The number of the frame."
  @spec number(binary) :: integer
  def number(row), do: trunc(number(row, @number))

  defp number(row, at) do
    <<_::binary-size(at), value::float-32-little, _::binary>> = row
    value
  end

  @doc "The frame with another number."
  @spec numbered(binary, integer) :: binary
  def numbered(row, number) do
    <<before::binary-size(@number), _::binary-size(4), rest::binary>> = row
    <<before::binary, number::float-32-little, rest::binary>>
  end

  @doc "The frame without its previous input."
  @spec without_input(binary) :: binary
  def without_input(row) do
    <<before::binary-size(@previous), _::binary-size(4 + @input), rest::binary>> = row
    <<before::binary, 0::size(8 * (4 + @input)), rest::binary>>
  end

  @doc "The frame with this previous input, if it has none."
  @spec with_input(binary, Action.t() | nil) :: binary
  def with_input(row, %Action{buttons: %{}, main_stick: main, c_stick: c} = action) do
    case row do
      <<before::binary-size(@previous), exists::float-32-little, _::binary-size(@input),
        rest::binary>>
      when exists == 0.0 ->
        buttons = for name <- @buttons, into: <<>>, do: <<held(action, name)::float-32-little>>

        <<before::binary, 1.0::float-32-little, buttons::binary, main.x::float-32-little,
          main.y::float-32-little, c.x::float-32-little, c.y::float-32-little,
          action.shoulder::float-32-little, rest::binary>>

      _with_one ->
        row
    end
  end

  def with_input(row, _none), do: row

  defp held(action, name), do: if(action.buttons[name], do: 1.0, else: 0.0)
end
