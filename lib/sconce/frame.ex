defmodule Sconce.Frame.Player do
  # {name, default, meaning}; in the order of the raw row. A test compares the table with Rust's.
  @fields [
    {:percent, :required, "damage, percent"},
    {:facing, :required, "1 or true: right; -1 or false: left; 0: unknown"},
    {:x, :required, "horizontal position, 0 at the middle of the stage"},
    {:y, :required, "vertical position"},
    {:action, :required, "action state, 0..398"},
    {:character, :required, "internal character id, 0..32"},
    {:invulnerable, false, "whether the player cannot be hit"},
    {:jumps_left, 2, "jumps left"},
    {:shield_strength, 60.0, "shield, 60 when full"},
    {:on_ground, :required, "whether the player is on the ground"},
    {:speed_air_x_self, 0.0, "own horizontal speed in the air, units per frame"},
    {:speed_ground_x_self, 0.0, "own horizontal speed on the ground, units per frame"},
    {:speed_y_self, 0.0, "own vertical speed, units per frame"},
    {:speed_x_attack, 0.0, "horizontal speed from a hit, units per frame"},
    {:speed_y_attack, 0.0, "vertical speed from a hit, units per frame"},
    {:hitstun_frames_left, 0, "hitstun left, frames"},
    {:action_frame, 0, "age of the action state, frames"},
    {:stock, :required, "stocks left"},
    {:nana_exists, false, "whether the player has a partner on the stage"},
    {:nana_x, 0.0, "partner: horizontal position"},
    {:nana_y, 0.0, "partner: vertical position"},
    {:nana_facing, 0, "partner: direction, as `facing`"},
    {:nana_percent, 0.0, "partner: damage, percent"},
    {:nana_stock, 0, "partner: stocks left"},
    {:nana_action, 0, "partner: action state, 0..398"}
  ]

  @moduledoc """
  One player of a `Sconce.Frame`. Positions are in the units of the game.

  | field | default | meaning |
  |---|---|---|
  #{Enum.map_join(@fields, "\n", fn
    {name, :required, meaning} -> "| `#{name}` | required | #{meaning} |"
    {name, default, meaning} -> "| `#{name}` | `#{inspect(default)}` | #{meaning} |"
  end)}
  """

  defstruct for {name, default, _} <- @fields, do: {name, if(default != :required, do: default)}

  @type t :: %__MODULE__{}

  @doc false
  def fields, do: unquote(Enum.map(@fields, fn {name, default, _} -> {name, default} end))
end

defmodule Sconce.Frame do
  alias Sconce.Error
  alias Sconce.Frame.Player

  # {name, default}, in the order of the raw row.
  @scene [stage: :required, frame: 0, distance: 0.0, name_id: 0]
  @projectile [owner: :required, type: 0, x: :required, y: :required, speed_x: 0.0, speed_y: 0.0]
  @buttons Enum.map(~w(a b x y z l r d_up)a, &{&1, false})
  @stick [x: :required, y: :required]
  @tables [
    player: Player.fields(),
    scene: @scene,
    buttons: @buttons,
    stick: @stick,
    shoulder: [shoulder: :required],
    projectile: @projectile
  ]
  @slots 5

  names = fn prefix, fields -> for {name, _} <- fields, do: "#{prefix}#{name}" end

  @controller names.("prev_buttons.", @buttons) ++
                ~w(prev_main_x prev_main_y prev_c_x prev_c_y prev_shoulder)
  @columns Enum.concat([
             names.("own.", Player.fields()),
             names.("opponent.", Player.fields()),
             names.("", @scene),
             ["prev_exists" | @controller],
             ["projectile_count"],
             Enum.flat_map(0..(@slots - 1), &names.("projectile_#{&1}.", @projectile))
           ])
  @byte_size 4 * length(@columns)
  # The largest finite 32-bit float.
  @max 3.4028234e38
  # Integers up to this size are compared without a conversion.
  @small 0x7FFF_FFFF
  @owners %{nobody: 0, own: 1, opponent: 2}

  @moduledoc """
  One game frame of Melee, as a policy reads it.

  | field | default | meaning |
  |---|---|---|
  | `own`, `opponent` | required | the acting player and the other one, each a `Sconce.Frame.Player` |
  | `stage` | required | stage id of the game, 0..32 |
  | `frame` | `0` | frame number, 60 per second, 0 at GO |
  | `distance` | `0.0` | distance of the players in units; 0 computes it from their positions |
  | `name_id` | `0` | player name or style, 0 unknown |
  | `previous_action` | `nil` | the controller input that led to this frame; a session fills it in |
  | `projectiles` | `[]` | maps of `owner`, `type`, `x`, `y`, `speed_x`, `speed_y`; a policy sees the first five |

  A previous action is a `Sconce.Action` or a map with the same `buttons`, `main_stick`, `c_stick` and
  `shoulder`. A missing button counts as released. Sticks and shoulder are in 0..1, and the centre of a
  stick is 0.5. The `owner` of a projectile is `:own`, `:opponent` or `:nobody` (1, 2 or 0), its `type`
  is the type of the item, and its speed is in units per frame.

  Every function that takes a frame accepts one of these forms:

    * this struct;
    * a map of the same fields, with atoms or strings as keys, and likewise for its players and
      projectiles; a field that is missing or nil gets its default, and other keys are ignored;
    * a binary: the raw row that `pack/1` returns.

  A missing required field, or a value that is not a number, is an error that names the field. The
  embedding checks whether a number is in the range of the game.

      iex> player = %{percent: 12.0, facing: 1, x: -20.0, y: 0.0, action: 14, character: 1,
      ...>   on_ground: true, stock: 4}
      iex> {:ok, row} = Sconce.Frame.pack(%{own: player, opponent: player, stage: 31})
      iex> byte_size(row)
      #{@byte_size}
      iex> {:error, error} = Sconce.Frame.pack(%{own: player, stage: 31})
      iex> Exception.message(error)
      "frame: opponent not found"
  """

  defstruct [:own, :opponent, :stage, :previous_action] ++
              Keyword.delete(@scene, :stage) ++ [projectiles: []]

  @type t :: %__MODULE__{
          own: Player.t() | map,
          opponent: Player.t() | map,
          stage: non_neg_integer,
          frame: integer,
          distance: number,
          name_id: non_neg_integer,
          previous_action: map | nil,
          projectiles: [map]
        }

  @doc """
  Returns the names of the columns of a raw row, in order.

      iex> Sconce.Frame.columns() |> Enum.take(3)
      ["own.percent", "own.facing", "own.x"]
  """
  @spec columns() :: [String.t()]
  def columns, do: @columns

  @doc """
  Packs a frame as its raw row: the `columns/0` as 32-bit floats, little-endian.

  A binary is already a raw row: only its size is checked.

      iex> player = %Sconce.Frame.Player{percent: 0.0, facing: 1, x: 10.0, y: 0.0, action: 14,
      ...>   character: 1, on_ground: true, stock: 4}
      iex> frame = %Sconce.Frame{own: player, opponent: %{player | x: -10.0}, stage: 31}
      iex> {:ok, row} = Sconce.Frame.pack(frame)
      iex> <<_percent_and_facing::binary-size(8), x::float-32-little, _rest::binary>> = row
      iex> x
      10.0
  """
  @spec pack(t | map | binary) :: {:ok, binary} | {:error, Error.t()}
  def pack(row) when byte_size(row) == @byte_size, do: {:ok, row}

  def pack(row) when is_binary(row) do
    {:error, mismatch("frame", "#{@byte_size} bytes", "#{byte_size(row)} bytes")}
  end

  def pack(frame) when is_map(frame) do
    {:ok,
     <<numbers(:player, map(frame, :own, ""), "own.")::binary,
       numbers(:player, map(frame, :opponent, ""), "opponent.")::binary,
       numbers(:scene, frame, "")::binary,
       previous_action(get(frame, :previous_action, "previous_action"))::binary,
       projectiles(get(frame, :projectiles, "projectiles") || [])::binary>>}
  catch
    {:refused, %Error{} = error} -> {:error, error}
  end

  def pack(other), do: {:error, mismatch("frame", "a frame, a map or a binary", inspect(other))}

  @doc """
  Returns the frame of a raw row, the inverse of `pack/1`.

  Ids and counts are integers, flags are booleans, and other numbers are floats of 32 bits. A row has at most five
  projectiles.

      iex> player = %Sconce.Frame.Player{percent: 12.5, facing: 1, x: 10.0, y: 0.0, action: 14,
      ...>   character: 1, on_ground: true, stock: 4}
      iex> {:ok, row} = Sconce.Frame.pack(%Sconce.Frame{own: player, opponent: %{player | x: -10.0}, stage: 31})
      iex> {:ok, frame} = Sconce.Frame.unpack(row)
      iex> {frame.own.percent, frame.opponent.x, frame.stage, frame.previous_action}
      {12.5, -10.0, 31, nil}
      iex> Sconce.Frame.pack(frame) == {:ok, row}
      true
  """
  @spec unpack(binary) :: {:ok, t} | {:error, Error.t()}
  def unpack(row) when byte_size(row) == @byte_size do
    {own, rest} = table(:player, row)
    {opponent, rest} = table(:player, rest)
    {scene, rest} = table(:scene, rest)
    {previous, rest} = taken(rest, 1 + length(@controller))
    <<count::binary-size(4), slots::binary>> = rest

    frame = %__MODULE__{
      own: struct!(Player, own),
      opponent: struct!(Player, opponent),
      previous_action: controller(previous),
      projectiles: slots |> projectiles_of() |> Enum.take(trunc(float(count)))
    }

    {:ok, struct!(frame, scene)}
  catch
    {:refused, %Error{} = error} -> {:error, error}
  end

  def unpack(row) when is_binary(row) do
    {:error, mismatch("frame", "#{@byte_size} bytes", "#{byte_size(row)} bytes")}
  end

  def unpack(other), do: {:error, mismatch("frame", "a binary", inspect(other))}

  @doc false
  # The raw values of an input, in the order of a row; `what` names it in errors.
  @spec input(map, String.t()) :: {:ok, binary} | {:error, Error.t()}
  def input(action, what) when is_map(action) do
    {:ok, numbers_of(action, "#{what}.")}
  catch
    {:refused, %Error{} = error} -> {:error, error}
  end

  def input(other, what), do: {:error, mismatch(what, "an action", inspect(other))}

  # Fields whose numbers are whole.
  @whole ~w(jumps_left action character stock nana_action nana_stock stage frame name_id type owner)a
  @flags ~w(invulnerable on_ground nana_exists)a

  # The fields of a table at the start of a row, and the rest of the row.
  defp table(name, row) do
    fields = @tables[name]
    {own, rest} = taken(row, length(fields))
    values = for <<number::binary-size(4) <- own>>, do: float(number)

    named =
      Enum.zip_with(fields, values, fn {key, _default}, value ->
        {key, typed(name, key, value)}
      end)

    {Map.new(named), rest}
  end

  defp taken(row, numbers) do
    size = 4 * numbers
    <<own::binary-size(size), rest::binary>> = row
    {own, rest}
  end

  # NaN and infinities match no float.
  defp float(<<number::float-32-little>>), do: number
  defp float(_other), do: refuse(mismatch("frame", "finite numbers", "one that is not"))

  defp typed(:buttons, _key, value), do: value != 0.0
  defp typed(_table, key, value) when key in @whole, do: trunc(value)
  defp typed(_table, key, value) when key in @flags, do: value != 0.0
  defp typed(_table, _key, value), do: value

  defp controller(<<known::binary-size(4), input::binary>>) do
    if float(known) != 0.0 do
      {buttons, rest} = table(:buttons, input)
      {main_stick, rest} = table(:stick, rest)
      {c_stick, rest} = table(:stick, rest)
      {shoulder, ""} = table(:shoulder, rest)
      Map.merge(shoulder, %{buttons: buttons, main_stick: main_stick, c_stick: c_stick})
    end
  end

  defp projectiles_of(""), do: []

  defp projectiles_of(slots) do
    {projectile, rest} = table(:projectile, slots)
    [projectile | projectiles_of(rest)]
  end

  defp previous_action(nil), do: <<0::size((1 + length(@controller)) * 32)>>

  defp previous_action(action) when is_map(action) do
    <<1.0::float-32-little, numbers_of(action, "previous_action.")::binary>>
  end

  defp previous_action(other),
    do: refuse(mismatch("previous_action", "an action or nil", inspect(other)))

  defp numbers_of(action, at) do
    <<numbers(:buttons, map(action, :buttons, at), "#{at}buttons.")::binary,
      numbers(:stick, map(action, :main_stick, at), "#{at}main_stick.")::binary,
      numbers(:stick, map(action, :c_stick, at), "#{at}c_stick.")::binary,
      numbers(:shoulder, action, at)::binary>>
  end

  defp projectiles(list) when length(list) >= 0 do
    used =
      for {projectile, i} <- list |> Enum.take(@slots) |> Enum.with_index(), into: <<>> do
        is_map(projectile) || refuse(mismatch("projectile_#{i}", "a map", inspect(projectile)))
        numbers(:projectile, projectile, "projectile_#{i}.")
      end

    rest = @slots * length(@projectile) * 32 - bit_size(used)
    <<length(list)::float-32-little, used::binary, 0::size(rest)>>
  end

  defp projectiles(other), do: refuse(mismatch("projectiles", "a list", inspect(other)))

  # The fields of one table as one binary. A map with an atom key for every field, such as a struct, is matched
  # at once, which is several times faster than one lookup for each field.
  for {table, fields} <- @tables do
    keys = for {name, default} <- fields, do: {name, to_string(name), default}
    vars = Macro.generate_arguments(length(fields), __MODULE__)
    pattern = {:%{}, [], Enum.zip(Keyword.keys(fields), vars)}

    segments =
      for {key, var} <- Enum.zip(keys, vars) do
        {:<<>>, _, [segment]} =
          quote do:
                  <<number(unquote(var), unquote(Macro.escape(key)), var!(prefix))::float-32-little>>

        segment
      end

    defp numbers(unquote(table), unquote(pattern), prefix), do: <<unquote_splicing(segments)>>

    defp numbers(unquote(table), map, prefix) do
      for {name, text, _default} = key <- unquote(Macro.escape(keys)), into: <<>> do
        <<number(get(map, name, text), key, prefix)::float-32-little>>
      end
    end
  end

  defp map(parent, name, prefix) do
    found =
      case parent do
        %{^name => value} -> value
        _ -> Map.get(parent, Atom.to_string(name))
      end

    case found do
      map when is_map(map) -> map
      nil -> refuse(error(:not_found, %{what: "#{prefix}#{name}"}))
      other -> refuse(mismatch("#{prefix}#{name}", "a map", inspect(other)))
    end
  end

  defp get(map, name, text) do
    case map do
      %{^name => value} -> value
      %{^text => value} -> value
      _ -> nil
    end
  end

  defp number(value, _key, _prefix) when is_float(value) and value <= @max and value >= -@max,
    do: value

  defp number(value, _key, _prefix)
       when is_integer(value) and value <= @small and value >= -@small,
       do: value

  defp number(value, _key, _prefix) when is_integer(value) and abs(value) <= @max, do: value
  defp number(true, _key, _prefix), do: 1
  # For a direction false means left, and 0 would mean unknown.
  defp number(false, {name, _, _}, _prefix) when name in [:facing, :nana_facing], do: -1
  defp number(false, _key, _prefix), do: 0

  defp number(nil, {name, _, :required}, prefix),
    do: refuse(error(:not_found, %{what: "#{prefix}#{name}"}))

  defp number(nil, {_, _, default} = key, prefix), do: number(default, key, prefix)
  defp number(owner, {:owner, _, _}, _) when is_map_key(@owners, owner), do: @owners[owner]

  defp number(value, {name, _, _}, prefix) when value in [:nan, :infinity, :neg_infinity],
    do: refuse(error(:non_finite, %{what: "#{prefix}#{name}", value: value}))

  defp number(value, {name, _, _}, prefix) when is_number(value) do
    details = %{field: "#{prefix}#{name}", value: value, min: -@max, max: @max}
    refuse(error(:out_of_range, details))
  end

  defp number(value, {name, _, _}, prefix),
    do: refuse(mismatch("#{prefix}#{name}", "a number", inspect(value)))

  @spec refuse(Error.t()) :: no_return
  defp refuse(error), do: throw({:refused, error})

  defp mismatch(what, expected, got),
    do: error(:mismatch, %{what: what, expected: expected, got: got})

  defp error(kind, details), do: %Error{kind: kind, op: :frame, details: details}
end
