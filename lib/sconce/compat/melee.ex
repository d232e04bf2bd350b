defmodule Sconce.Compat.Melee do
  alias Sconce.{Action, Error, Frame, Loaded, Options}

  # Stage ids of a running game (libmelee's), and those of a replay's start.
  @stages %{0x06 => 8, 0x08 => 2, 0x12 => 3, 0x18 => 31, 0x19 => 32, 0x1A => 28}
  # States of a hit player. Elsewhere the game's memory for hitstun holds other values.
  @hit Enum.to_list(75..91) ++ [185, 193]
  @in_game [2, 3]
  @postgame 4
  @expected "a Melee.GameState or an ExPhil.Bridge.GameState"
  @buttons [:a, :b, :x, :y, :z, :l, :r, :d_up]
  @neutral %{
    buttons: Map.new(@buttons, &{&1, false}),
    main_stick: %{x: 0.5, y: 0.5},
    c_stick: %{x: 0.5, y: 0.5},
    shoulder: 0.0
  }

  @moduledoc """
  Game states of the libraries that talk to Dolphin as frames, and inputs in their shapes.

  Neither library is a dependency: a state is recognised by the name of its struct.

  | struct | library | stage ids | sticks |
  |---|---|---|---|
  | `Melee.GameState` | libmelee_ex | of the running game | tuples |
  | `ExPhil.Bridge.GameState` | ExPhil | of the running game, as its bridge passes them on | maps |

  The ids of a running game differ from those of replays: 8 is the Fountain of Dreams in a game and Yoshi's Story in a
  replay. Policies learn from replays, so `frame/3` maps them. ExPhil does not, and its policies see another stage on the
  Fountain of Dreams; `stage_ids: :replay` leaves the ids as they are.

  A state has values for hitstun that mean something else while a player is not hit. `frame/3` sets them to 0, as a
  replay does.

      iex> Sconce.Compat.Melee.phase(%{__struct__: Melee.GameState, menu_state: 2})
      :game
      iex> Sconce.Compat.Melee.recognised?(%{frame: 3})
      false
  """

  @typedoc "A controller input: `buttons`, `main_stick`, `c_stick` and `shoulder`, as in `Sconce.Action`."
  @type input :: %{
          :buttons => %{atom => boolean},
          :main_stick => Action.stick(),
          :c_stick => Action.stick(),
          :shoulder => float,
          optional(atom) => term
        }
  @typedoc "A game state of one of the libraries."
  @type state :: struct

  @frame [
    stage_ids: [
      type: {:in, [:game, :replay]},
      default: :game,
      doc: "Ids of stages in the state: of a running game, which are mapped, or of a replay."
    ]
  ]

  @doc """
  Returns whether a term is a game state that this module reads.

      iex> Sconce.Compat.Melee.recognised?(%{__struct__: ExPhil.Bridge.GameState})
      true
  """
  @spec recognised?(term) :: boolean
  def recognised?(%{__struct__: Melee.GameState}), do: true
  def recognised?(%{__struct__: ExPhil.Bridge.GameState}), do: true
  def recognised?(_other), do: false

  @doc """
  Returns the phase of a state: `:game`, `:postgame` (the score screen), or `:menu`.

      iex> Sconce.Compat.Melee.phase(%{__struct__: ExPhil.Bridge.GameState, menu_state: 4})
      :postgame
  """
  @spec phase(state) :: :game | :postgame | :menu
  def phase(%{menu_state: menu}) when menu in @in_game, do: :game
  def phase(%{menu_state: @postgame}), do: :postgame
  def phase(%{}), do: :menu

  @doc """
  Returns the port that the bot plays: ExPhil's `own_port` where the bridge has found it, else `port`.

      iex> Sconce.Compat.Melee.port(%{own_port: 2}, 1)
      2
      iex> Sconce.Compat.Melee.port(%{own_port: nil}, 1)
      1
  """
  @spec port(map, 1..4) :: 1..4
  def port(%{own_port: own}, _port) when own in 1..4, do: own
  def port(_state, port) when port in 1..4, do: port

  @doc """
  Returns the frame of a state as the player at `port` sees it. The other player of the game is the opponent.

  The previous action of the frame is the input that the game reports for the player, if it does.

      iex> player = %{position: %{x: -30.0, y: 0.0}, facing: true, action: 14, character: 1, percent: 0.0, stock: 4,
      ...>   on_ground: true, nana: nil}
      iex> state = %{__struct__: Melee.GameState, frame: 7, stage: 0x19, menu_state: 2, distance: 60.0, projectiles: [],
      ...>   players: %{1 => player, 2 => %{player | position: %{x: 30.0, y: 0.0}}}}
      iex> {:ok, frame} = Sconce.Compat.Melee.frame(state, 2)
      iex> {frame.own.x, frame.opponent.x, frame.stage, frame.frame}
      {30.0, -30.0, 32, 7}

  | kind of error | cause |
  |---|---|
  | `:not_found` | no player at the port, or no opponent, or a missing field, which it names with its place |
  | `:mismatch` | more than two players, a part that is not of its kind, or not a state that `recognised?/1` accepts |

  Numbers are not checked here: `Sconce.Frame.pack/1` and embeddings name a value that is none.

  #{Options.docs(@frame)}
  """
  @spec frame(state, 1..4, keyword) :: {:ok, Frame.t()} | {:error, Error.t()}
  def frame(state, port, opts \\ [])

  def frame(state, port, opts) when port in 1..4 do
    [stage_ids: ids] = Options.validate!(opts, @frame)

    if is_struct(state) and recognised?(state),
      do: read(state, port, ids),
      else: {:error, error(:mismatch, mismatch("game state", @expected, state))}
  end

  def frame(_state, port, _opts), do: Options.argument!("port", port, "1 to 4")

  defp read(state, port, ids) do
    {own, {at, opponent}} = state |> get(:players, "the game state") |> players(port)
    stage = get(state, :stage, "the game state")

    {:ok,
     %Frame{
       own: player(own, at(port)),
       opponent: player(opponent, at(at)),
       stage: if(ids == :game, do: Map.get(@stages, stage, stage), else: stage),
       frame: get(state, :frame, "the game state"),
       distance: Map.get(state, :distance) || 0.0,
       previous_action: reported(own, at(port)),
       projectiles: state |> Map.get(:projectiles) |> projectiles(port)
     }}
  catch
    {:refused, %Error{} = error} -> {:error, error}
  end

  # A required field. A field that is nil is refused later, where it is read as a number.
  defp get(map, key, whose) do
    case map do
      %{^key => value} -> value
      %{} -> missing("#{inspect(key)} of #{whose}")
      other -> refuse(:mismatch, mismatch(whose, "a map", other))
    end
  end

  defp at(port), do: "the player at port #{inspect(port)}"

  defp players(players, port) when is_map(players) do
    case Map.pop(players, port) do
      {nil, _rest} ->
        ports = players |> Map.keys() |> Enum.sort() |> Enum.map_join(", ", &inspect/1)
        missing("player at port #{port} (the game has ports #{ports})")

      {own, rest} when map_size(rest) == 1 ->
        {own, rest |> Map.to_list() |> opponent()}

      {_own, rest} when map_size(rest) == 0 ->
        missing("an opponent of port #{port}")

      {_own, rest} ->
        details = %{what: "players of a game", expected: 2, got: map_size(rest) + 1}
        refuse(:mismatch, details)
    end
  end

  defp players(other, _port),
    do: refuse(:mismatch, mismatch("players of the game state", "a map by port", other))

  defp opponent([{at, nil}]), do: missing("player at port #{inspect(at)}")
  defp opponent([opponent]), do: opponent

  @spec missing(String.t()) :: no_return
  defp missing(what), do: refuse(:not_found, %{what: what})

  @spec refuse(Error.kind(), map) :: no_return
  defp refuse(kind, details), do: throw({:refused, error(kind, details)})

  defp error(kind, details), do: %Error{kind: kind, op: :frame, details: details}

  defp mismatch(what, expected, %{__struct__: module})
       when what == "game state" and is_atom(module),
       do: %{what: what, expected: expected, got: inspect(module)}

  defp mismatch(what, expected, got),
    do: %{what: what, expected: expected, got: inspect(got, limit: 5, printable_limit: 50)}

  defp player(player, whose) do
    {x, y} = place(player, whose)

    struct(
      %Frame.Player{
        percent: get(player, :percent, whose),
        facing: get(player, :facing, whose),
        x: x,
        y: y,
        action: get(player, :action, whose),
        character: get(player, :character, whose),
        on_ground: get(player, :on_ground, whose),
        stock: get(player, :stock, whose),
        invulnerable: Map.get(player, :invulnerable),
        jumps_left: Map.get(player, :jumps_left),
        shield_strength: Map.get(player, :shield_strength),
        speed_air_x_self: Map.get(player, :speed_air_x_self),
        speed_ground_x_self: Map.get(player, :speed_ground_x_self),
        speed_y_self: Map.get(player, :speed_y_self),
        speed_x_attack: Map.get(player, :speed_x_attack),
        speed_y_attack: Map.get(player, :speed_y_attack),
        hitstun_frames_left: hitstun(player),
        action_frame: Map.get(player, :action_frame)
      },
      nana(Map.get(player, :nana), "the partner of " <> whose)
    )
  end

  defp place(%{position: %{x: x, y: y}}, _whose), do: {x, y}

  defp place(%{position: position}, whose),
    do: refuse(:mismatch, mismatch("position of " <> whose, "a map of x and y", position))

  defp place(part, whose), do: {get(part, :x, whose), get(part, :y, whose)}

  defp hitstun(%{action: action, hitstun_frames_left: left}) when action in @hit, do: left
  defp hitstun(_player), do: 0

  defp nana(nil, _whose), do: []

  defp nana(nana, whose) do
    {x, y} = place(nana, whose)

    [
      nana_exists: true,
      nana_x: x,
      nana_y: y,
      nana_facing: get(nana, :facing, whose),
      nana_percent: get(nana, :percent, whose),
      nana_stock: get(nana, :stock, whose),
      nana_action: get(nana, :action, whose)
    ]
  end

  # A replay lists items by spawn id, and a policy sees the first five.
  defp projectiles(nil, _port), do: []

  defp projectiles(list, port) when length(list) >= 0 do
    list
    |> Enum.with_index(&projectile(&1, "projectile #{&2}", port))
    |> Enum.sort_by(fn {spawn_id, _projectile} -> spawn_id end)
    |> Enum.map(fn {_spawn_id, projectile} -> projectile end)
  end

  defp projectiles(other, _port),
    do: refuse(:mismatch, mismatch("projectiles of the game state", "a list", other))

  defp projectile(projectile, whose, port) do
    {x, y} = place(projectile, whose)
    {speed_x, speed_y} = speed(projectile, whose)

    {Map.get(projectile, :spawn_id, 0),
     %{
       owner: projectile |> get(:owner, whose) |> owner(port),
       type: get(projectile, :type, whose),
       x: x,
       y: y,
       speed_x: speed_x,
       speed_y: speed_y
     }}
  end

  defp speed(%{speed: %{x: x, y: y}}, _whose), do: {x, y}

  defp speed(%{speed: speed}, whose),
    do: refuse(:mismatch, mismatch("speed of " <> whose, "a map of x and y", speed))

  defp speed(part, whose), do: {get(part, :speed_x, whose), get(part, :speed_y, whose)}

  defp owner(port, port), do: :own
  defp owner(other, _port) when other in 1..4, do: :opponent
  defp owner(_none, _port), do: 0

  # The input of a player, or nil. A pad of another shape is not taken for none; an empty one of ExPhil has no sticks.
  defp reported(%{controller_state: %{main_stick: nil}}, _whose), do: nil

  defp reported(%{controller_state: pad} = player, whose) when pad != nil do
    observed(player) ||
      refuse(:mismatch, mismatch("controller_state of " <> whose, "buttons and sticks", pad))
  end

  defp reported(_player, _whose), do: nil

  @doc """
  Returns the input that the game reports for a player of a state, or nil if it has none in the shape of either library.

      iex> controller = %{button: %{a: true}, main_stick: {1.0, 0.5}, c_stick: {0.5, 0.5}, l_shoulder: 0.0}
      iex> input = Sconce.Compat.Melee.observed(%{controller_state: controller})
      iex> {input.buttons.a, input.buttons.b, input.main_stick}
      {true, false, %{x: 1.0, y: 0.5}}
  """
  @spec observed(map) :: input | nil
  def observed(%{
        controller_state: %{
          button: %{} = pressed,
          main_stick: {x, y},
          c_stick: {cx, cy},
          l_shoulder: shoulder
        }
      }) do
    %{
      buttons: Map.new(@buttons, &{&1, Map.get(pressed, &1, false)}),
      main_stick: %{x: x, y: y},
      c_stick: %{x: cx, y: cy},
      shoulder: shoulder
    }
  end

  def observed(%{controller_state: %{button_a: _, main_stick: %{}, c_stick: %{}} = pad}) do
    %{
      buttons: Map.new(@buttons, &{&1, Map.get(pad, :"button_#{&1}") || false}),
      main_stick: pad.main_stick,
      c_stick: pad.c_stick,
      shoulder: Map.get(pad, :l_shoulder) || 0.0
    }
  end

  def observed(_player), do: nil

  @doc """
  Returns the neutral input: no button pressed, sticks centred, shoulder released.

      iex> Sconce.Compat.Melee.neutral().main_stick
      %{x: 0.5, y: 0.5}
  """
  @spec neutral() :: input
  def neutral, do: @neutral

  @doc """
  Returns an input in the shape of a library: `:libmelee` gives a `Melee.ControllerState`, `:exphil` an
  `ExPhil.Bridge.ControllerState`, `:bridge` the map that ExPhil's `MeleePort.send_controller/2` takes. Where the library is
  not loaded, the result is a map of the same fields.

  The shoulder is the left one, as in ExPhil.

      iex> Sconce.Compat.Melee.controller(Sconce.Compat.Melee.neutral(), :libmelee) |> Map.take([:main_stick, :l_shoulder])
      %{main_stick: {0.5, 0.5}, l_shoulder: 0.0}
      iex> Sconce.Compat.Melee.controller(Sconce.Compat.Melee.neutral(), :exphil).button_a
      false
  """
  @spec controller(input | Action.t(), :libmelee | :exphil | :bridge) :: map
  def controller(%{buttons: %{}, main_stick: main, c_stick: c, shoulder: shoulder} = input, shape) do
    case shape do
      :libmelee ->
        fields = %{
          button: input.buttons,
          main_stick: {main.x, main.y},
          c_stick: {c.x, c.y},
          l_shoulder: shoulder,
          r_shoulder: 0.0
        }

        named(Melee.ControllerState, fields)

      :exphil ->
        fields = %{main_stick: main, c_stick: c, l_shoulder: shoulder, r_shoulder: 0.0}
        fields = for {name, held} <- input.buttons, into: fields, do: {:"button_#{name}", held}
        named(ExPhil.Bridge.ControllerState, fields)

      :bridge ->
        %{main_stick: main, c_stick: c, shoulder: shoulder, buttons: input.buttons}

      other ->
        Options.known!(other, [:libmelee, :exphil, :bridge], "shape of an input")
    end
  end

  def controller(other, _shape),
    do: Options.argument!("input", other, "an action of a controller")

  # The libmelee struct has more buttons, which stay released.
  defp named(module, fields) do
    if Loaded.loaded?(module) do
      default = struct(module)
      pressed = Map.merge(Map.get(default, :button, %{}), Map.get(fields, :button, %{}))
      fields = if Map.has_key?(default, :button), do: %{fields | button: pressed}, else: fields
      struct(default, fields)
    else
      fields
    end
  end
end
