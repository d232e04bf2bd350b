defmodule Sconce.Test.MeleeStates do
  @moduledoc false
  # Game states in the shape of libmelee_ex and of ExPhil's bridge, without either library: made up, or of a recording.

  @stages %{8 => 0x06, 2 => 0x08, 3 => 0x12, 31 => 0x18, 32 => 0x19, 28 => 0x1A}
  @fields Keyword.keys(Sconce.Frame.Player.fields())
  @buttons [:a, :b, :x, :y, :z, :l, :r, :d_up]
  @start -123
  @control -40

  @doc """
  The states of a made-up game with `frames` frames from -123 on: two players walk, jump, hit each other and lose stocks.
  `inputs` is a function from a frame number to the input that the game reports for port 1, or nil.
  """
  def game(frames, opts \\ []) do
    inputs = opts[:inputs] || fn _number -> neutral() end
    for number <- @start..(@start + frames - 1), do: state(number, inputs, opts)
  end

  def state(number, inputs \\ fn _number -> neutral() end, opts \\ []) do
    t = max(number, 0)

    %{
      __struct__: Melee.GameState,
      frame: number,
      stage: opts[:stage] || 0x19,
      menu_state: 2,
      submenu: 0xFF,
      distance: 0.0,
      projectiles: [],
      custom: %{},
      players: %{
        1 => player(t, -1, inputs.(number)),
        2 => player(t, 1, neutral())
      }
    }
  end

  defp player(t, side, input) do
    jumping? = rem(t, 90) < 24
    lost = div(t, 2000)

    %{
      __struct__: Melee.PlayerState,
      character: if(side < 0, do: 1, else: 9),
      position: xy(side * 30.0 + 20 * :math.sin(t / 40), if(jumping?, do: 12.0, else: 0.0)),
      percent: rem(div(t, 37) * 3, 120) / 1,
      shield_strength: 60.0,
      stock: max(4 - lost, 0),
      facing: side < 0,
      action: if(rem(t, 90) in 86..89, do: 24, else: if(jumping?, do: 25, else: 14)),
      action_frame: rem(t, 90),
      invulnerable: false,
      hitstun_frames_left: 0,
      jumps_left: if(jumping?, do: 1, else: 2),
      on_ground: not jumping?,
      speed_air_x_self: 0.0,
      speed_y_self: 0.0,
      speed_x_attack: 0.0,
      speed_y_attack: 0.0,
      speed_ground_x_self: 0.5,
      nana: nil,
      controller_state: input && pad(input)
    }
  end

  defp xy(x, y), do: %{__struct__: Melee.Position, x: x, y: y}

  def neutral, do: Sconce.Compat.Melee.neutral()

  defp pad(input) do
    %{
      __struct__: Melee.ControllerState,
      button:
        Map.merge(%{start: false, d_down: false, d_left: false, d_right: false}, input.buttons),
      main_stick: {input.main_stick.x, input.main_stick.y},
      c_stick: {input.c_stick.x, input.c_stick.y},
      l_shoulder: input.shoulder,
      r_shoulder: 0.0
    }
  end

  @doc "A state with a partner, a projectile and an input, so that each part of a state is in it."
  def full(number) do
    %{players: %{1 => one} = players} = state = state(number)
    nana = %{__struct__: Melee.PlayerState, position: xy(3.0, 0.0), facing: true}
    nana = Map.merge(nana, %{percent: 5.0, stock: 2, action: 14})

    state
    |> Map.put(:players, %{players | 1 => %{one | nana: nana}})
    |> Map.put(:projectiles, [projectile([1, 54, 1.0, 2.0, 0.5, 0.0])])
  end

  @doc """
  Malformed states of both libraries, each with a part of the message that its error must have.
  """
  def malformed(number) do
    for state <- [full(number), exphil(full(number))],
        {change, text} <- malformed(),
        do: {change.(state), text}
  end

  defp malformed do
    at = fn state, port, player -> %{state | players: Map.put(state.players, port, player)} end
    one = &at.(&1, 1, &2)
    own = fn state, change -> one.(state, change.(state.players[1])) end
    nana = fn state, change -> own.(state, &%{&1 | nana: change.(&1.nana)}) end
    item = fn state, change -> %{state | projectiles: Enum.map(state.projectiles, change)} end
    without = fn key -> &Map.delete(&1, key) end

    for(key <- [:stage, :frame, :players], do: {without.(key), ":#{key} of the game state"}) ++
      for(
        key <- [:percent, :facing, :action, :character, :on_ground, :stock],
        do: {&own.(&1, without.(key)), ":#{key} of the player at port 1"}
      ) ++
      for(
        key <- [:facing, :percent, :stock, :action],
        do: {&nana.(&1, without.(key)), ":#{key} of the partner of the player at port 1"}
      ) ++
      for(key <- [:owner, :type], do: {&item.(&1, without.(key)), ":#{key} of projectile 0"}) ++
      [
        {&%{&1 | players: %{1 => %{}, 2 => %{}}}, "of the player at port 1"},
        {&%{&1 | players: %{1 => &1.players[1], 2 => %{}}}, "of the player at port 2"},
        {&one.(&1, nil), "player at port 1"},
        {&at.(&1, 2, nil), "player at port 2"},
        {&one.(&1, 5), "the player at port 1"},
        {&%{&1 | players: %{{1} => &1.players[1], 2 => &1.players[2]}},
         "the game has ports 2, {1}"},
        {&%{&1 | players: %{1 => &1.players[1], {2} => %{}}}, "of the player at port {2}"},
        {&%{&1 | players: [&1.players[1]]}, "players of the game state"},
        {&own.(&1, fn player -> Map.merge(player, %{position: nil, x: nil}) end), "port 1"},
        {&own.(&1, fn player -> %{player | percent: "many"} end), "own.percent"},
        {&own.(&1, fn player -> %{player | controller_state: 5} end),
         "controller_state of the player at port 1"},
        {&nana.(&1, fn _nana -> 5 end), "the partner of the player at port 1"},
        {&item.(&1, fn _item -> nil end), "projectile 0"},
        {&item.(&1, fn _item -> %{} end), ":x of projectile 0"},
        {&%{&1 | projectiles: %{}}, "projectiles of the game state"},
        {&%{&1 | projectiles: [1 | 2]}, "projectiles of the game state"},
        {&%{&1 | stage: "castle"}, "stage"},
        {&%{&1 | distance: {:far}}, "distance"}
      ]
  end

  @doc "The state with each of the terms in place of each of its parts, and without it."
  def odd(state, terms) do
    for path <- paths(state), term <- [:removed | terms], do: changed(state, path, term)
  end

  defp paths(%{} = map),
    do: for({key, part} <- Map.to_list(map), path <- [[] | paths(part)], do: [key | path])

  defp paths([first | _rest]), do: for(path <- [[] | paths(first)], do: [0 | path])
  defp paths(_part), do: []

  defp changed(map, [key], :removed) when is_map(map), do: Map.delete(map, key)
  defp changed(list, [0], :removed), do: tl(list)
  defp changed(_part, [], term), do: term
  defp changed([first | rest], [0 | path], term), do: [changed(first, path, term) | rest]

  defp changed(map, [key | path], term),
    do: %{map | key => changed(Map.fetch!(map, key), path, term)}

  @doc "A state of a menu."
  def menu(number \\ -10_000),
    do: %{state(number) | menu_state: 0, players: %{}}

  @doc "The states of `Sconce.Corpus.recording/3` of player 0 at port 1, with a countdown before them."
  def of_recording([{first, _labels} | _] = recording) do
    countdown = for number <- @start..(@control - 1), do: %{of_row(first) | frame: number}
    countdown ++ for({row, _labels} <- recording, do: of_row(row))
  end

  @doc "The state of one packed frame."
  def of_row(row) do
    values = for <<value::float-32-little <- row>>, do: value
    {own, rest} = Enum.split(values, length(@fields))
    {opponent, rest} = Enum.split(rest, length(@fields))
    [stage, frame, _distance, _name, exists | rest] = rest
    {pressed, [mx, my, cx, cy, shoulder, count | items]} = Enum.split(rest, 8)

    input = %{
      buttons: @buttons |> Enum.zip(Enum.map(pressed, &(&1 == 1.0))) |> Map.new(),
      main_stick: %{x: mx, y: my},
      c_stick: %{x: cx, y: cy},
      shoulder: shoulder
    }

    %{
      state(trunc(frame))
      | stage: Map.fetch!(@stages, trunc(stage)),
        projectiles:
          items
          |> Enum.chunk_every(6)
          |> Enum.take(min(trunc(count), 5))
          |> Enum.map(&projectile/1),
        players: %{
          1 => of_values(own, if(exists == 1.0, do: input)),
          2 => of_values(opponent, neutral())
        }
    }
  end

  defp of_values(values, input) do
    given = @fields |> Enum.zip(values) |> Map.new()

    %{
      player(0, -1, input)
      | character: trunc(given.character),
        position: xy(given.x, given.y),
        percent: given.percent,
        shield_strength: given.shield_strength,
        stock: trunc(given.stock),
        facing: given.facing > 0,
        action: trunc(given.action),
        action_frame: given.action_frame,
        invulnerable: given.invulnerable > 0,
        hitstun_frames_left: given.hitstun_frames_left,
        jumps_left: trunc(given.jumps_left),
        on_ground: given.on_ground > 0,
        speed_air_x_self: given.speed_air_x_self,
        speed_y_self: given.speed_y_self,
        speed_x_attack: given.speed_x_attack,
        speed_y_attack: given.speed_y_attack,
        speed_ground_x_self: given.speed_ground_x_self,
        nana: nana(given)
    }
  end

  defp nana(%{nana_exists: exists} = given) when exists > 0 do
    %{
      __struct__: Melee.PlayerState,
      position: xy(given.nana_x, given.nana_y),
      facing: given.nana_facing > 0,
      percent: given.nana_percent,
      stock: trunc(given.nana_stock),
      action: trunc(given.nana_action)
    }
  end

  defp nana(_alone), do: nil

  defp projectile([owner, type, x, y, speed_x, speed_y]) do
    %{
      __struct__: Melee.Projectile,
      owner: trunc(owner),
      type: trunc(type),
      position: xy(x, y),
      speed: xy(speed_x, speed_y),
      spawn_id: 0
    }
  end

  @doc "Writes messages with their ticks for `test/support/replayer.exs`."
  def write_plan!(path, plan) do
    file = File.open!(path, [:write, :raw, :delayed_write])

    for {ticks, message} <- plan do
      message = if message == :die, do: <<>>, else: :erlang.term_to_binary(message)
      :ok = :file.write(file, [<<ticks::32, byte_size(message)::32>>, message])
    end

    :ok = File.close(file)
  end

  @doc "The same state as ExPhil's bridge passes it on."
  def exphil(state) do
    %{
      __struct__: ExPhil.Bridge.GameState,
      frame: state.frame,
      stage: state.stage,
      menu_state: state.menu_state,
      own_port: nil,
      distance: state.distance,
      items: nil,
      projectiles: for(projectile <- state.projectiles, do: exphil_projectile(projectile)),
      players: Map.new(state.players, fn {port, player} -> {port, exphil_player(player)} end)
    }
  end

  defp exphil_projectile(%{position: at, speed: speed, owner: owner, type: type}) do
    %{
      __struct__: ExPhil.Bridge.Projectile,
      owner: owner,
      type: type,
      subtype: 0,
      x: at.x,
      y: at.y,
      speed_x: speed.x,
      speed_y: speed.y
    }
  end

  defp exphil_player(player) do
    kept = Map.drop(player, [:__struct__, :position, :controller_state, :nana, :facing])

    Map.merge(kept, %{
      __struct__: ExPhil.Bridge.Player,
      x: player.position.x,
      y: player.position.y,
      facing: if(player.facing, do: 1, else: -1),
      nana: player.nana && exphil_nana(player.nana),
      controller_state: player.controller_state && exphil_pad(player.controller_state),
      connect_code: "",
      nametag: ""
    })
  end

  defp exphil_nana(nana) do
    %{
      __struct__: ExPhil.Bridge.Nana,
      x: nana.position.x,
      y: nana.position.y,
      facing: if(nana.facing, do: 1, else: -1),
      percent: nana.percent,
      stock: nana.stock,
      action: nana.action
    }
  end

  defp exphil_pad(pad) do
    {mx, my} = pad.main_stick
    {cx, cy} = pad.c_stick

    buttons = for button <- @buttons, into: %{}, do: {:"button_#{button}", pad.button[button]}

    Map.merge(buttons, %{
      __struct__: ExPhil.Bridge.ControllerState,
      main_stick: %{x: mx, y: my},
      c_stick: %{x: cx, y: cy},
      l_shoulder: pad.l_shoulder,
      r_shoulder: pad.r_shoulder
    })
  end
end
