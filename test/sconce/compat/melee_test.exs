defmodule Sconce.Compat.MeleeTest do
  use ExUnit.Case, async: true

  # `Melee` alone is another library in the doctests.
  alias Sconce.{Action, Compat, Error, Frame}
  alias Sconce.Test.MeleeStates

  doctest Sconce.Compat.Melee

  @buttons [:a, :b, :x, :y, :z, :l, :r, :d_up]

  # Both players of a state, with a value of its own in each field.
  defp own do
    %{
      character: 10,
      position: %{x: -12.5, y: 7.25},
      percent: 31.0,
      shield_strength: 41.5,
      stock: 3,
      facing: false,
      action: 80,
      action_frame: 6,
      invulnerable: true,
      hitstun_frames_left: 9,
      jumps_left: 1,
      on_ground: true,
      speed_air_x_self: 0.5,
      speed_y_self: -1.5,
      speed_x_attack: 2.5,
      speed_y_attack: 3.5,
      speed_ground_x_self: -0.25,
      nana: nana()
    }
  end

  defp nana do
    %{
      position: %{x: -20.0, y: 1.0},
      facing: true,
      percent: 55.0,
      stock: 2,
      action: 33
    }
  end

  defp melee(changes \\ %{}, scene \\ %{}) do
    state = MeleeStates.state(12)
    one = state.players[1] |> Map.merge(own()) |> Map.merge(changes)
    state |> Map.put(:players, %{state.players | 1 => one}) |> Map.merge(scene)
  end

  defp both(state), do: [state, MeleeStates.exphil(state)]

  defp frame!(state, port \\ 1, opts \\ []) do
    {:ok, frame} = Compat.Melee.frame(state, port, opts)
    frame
  end

  defp row(state, port) do
    {:ok, row} = state |> frame!(port) |> Frame.pack()
    row
  end

  describe "a frame" do
    test "has every field of the own player, of both libraries" do
      for state <- both(melee()) do
        own = frame!(state).own
        assert own.character == 10
        assert {own.x, own.y} == {-12.5, 7.25}
        assert own.percent == 31.0
        assert own.shield_strength == 41.5
        assert own.stock == 3
        assert own.facing in [false, -1]
        assert own.action == 80
        assert own.action_frame == 6
        assert own.invulnerable == true
        assert own.hitstun_frames_left == 9
        assert own.jumps_left == 1
        assert own.on_ground == true
        assert own.speed_air_x_self == 0.5
        assert own.speed_y_self == -1.5
        assert own.speed_x_attack == 2.5
        assert own.speed_y_attack == 3.5
        assert own.speed_ground_x_self == -0.25
        assert own.nana_exists == true
        assert {own.nana_x, own.nana_y} == {-20.0, 1.0}
        assert own.nana_facing in [true, 1]
        assert own.nana_percent == 55.0
        assert own.nana_stock == 2
        assert own.nana_action == 33
      end
    end

    test "has each field of a player in its own column" do
      names = Enum.filter(Frame.columns(), &String.starts_with?(&1, "own."))
      {:ok, row} = melee() |> frame!() |> Frame.pack()
      values = for <<value::float-32-little <- row>>, do: value
      by_name = names |> Enum.zip(values) |> Map.new()
      assert by_name["own.facing"] == -1.0
      assert by_name["own.nana_facing"] == 1.0
      assert by_name["own.invulnerable"] == 1.0
      # No other field is at its default by accident.
      assert Enum.count(by_name, fn {_name, value} -> value == 0.0 end) == 0
    end

    test "has the same row for both libraries, and the other player turns it around" do
      [one, two] = for state <- both(melee()), do: frame!(state) |> Frame.pack()
      assert one == two

      seen = frame!(melee())
      turned = frame!(melee(), 2)
      assert {turned.own, turned.opponent} == {seen.opponent, seen.own}
    end

    test "has the number, the distance and the stage of the state" do
      for state <- both(melee(%{}, %{frame: -17, distance: 33.5})) do
        frame = frame!(state)
        assert {frame.frame, frame.distance, frame.name_id} == {-17, 33.5, 0}
      end

      assert frame!(melee(%{}, %{distance: nil})).distance == 0.0
    end

    test "has the stage ids of replays, unless the state has them already" do
      ids = %{0x06 => 8, 0x08 => 2, 0x12 => 3, 0x18 => 31, 0x19 => 32, 0x1A => 28}

      for {in_game, in_replay} <- ids, state <- both(melee(%{}, %{stage: in_game})) do
        assert frame!(state).stage == in_replay
        assert frame!(state, 1, stage_ids: :replay).stage == in_game
      end

      # Ids of replays that mean no other stage in a game stay.
      for id <- [2, 3, 28, 31, 32], do: assert(frame!(melee(%{}, %{stage: id})).stage == id)
    end

    test "has no partner without one" do
      for state <- both(melee(%{nana: nil})) do
        own = frame!(state).own
        assert own.nana_exists == false
        assert {own.nana_x, own.nana_stock} == {0.0, 0}
      end
    end

    test "has hitstun in the states of a hit player alone" do
      for action <- Enum.to_list(75..91) ++ [185, 193],
          state <- both(melee(%{action: action})),
          do: assert(frame!(state).own.hitstun_frames_left == 9)

      for action <- [0, 14, 24, 74, 92, 178, 184, 186, 192, 194],
          state <- both(melee(%{action: action})),
          do: assert(frame!(state).own.hitstun_frames_left == 0)
    end

    test "orders projectiles by the time they appeared, and names their owners" do
      projectile = fn id, owner ->
        %{
          owner: owner,
          type: 54 + id,
          position: %{x: 1.0 * id, y: 2.0},
          speed: %{x: 0.5 * id, y: -1.0},
          spawn_id: id
        }
      end

      # Six: a policy sees the first five.
      list = [
        projectile.(5, 2),
        projectile.(1, 1),
        projectile.(3, 0),
        projectile.(2, 3),
        projectile.(6, 1),
        projectile.(4, -1)
      ]

      state = melee(%{}, %{projectiles: list})
      seen = frame!(state).projectiles
      assert Enum.map(seen, & &1.type) == [55, 56, 57, 58, 59, 60]
      assert Enum.map(seen, & &1.owner) == [:own, :opponent, 0, 0, :opponent, :own]
      assert hd(seen) == %{owner: :own, type: 55, x: 1.0, y: 2.0, speed_x: 0.5, speed_y: -1.0}

      assert Enum.map(frame!(state, 2).projectiles, & &1.owner) == [
               :opponent,
               :opponent,
               0,
               0,
               :own,
               :opponent
             ]

      # ExPhil's projectiles have no spawn id, and keep the order of the bridge.
      bridged = MeleeStates.exphil(state)
      assert Enum.map(frame!(bridged).projectiles, & &1.type) == Enum.map(list, & &1.type)
      assert frame!(%{bridged | projectiles: nil}).projectiles == []
    end

    test "has the input that the game reports, or none" do
      input = %{
        buttons: Map.new(@buttons, &{&1, &1 in [:b, :d_up]}),
        main_stick: %{x: 0.25, y: 1.0},
        c_stick: %{x: 0.0, y: 0.75},
        shoulder: 0.5
      }

      state = MeleeStates.state(3, fn 3 -> input end)
      for state <- both(state), do: assert(frame!(state).previous_action == input)

      for state <- both(MeleeStates.state(3, fn 3 -> nil end)),
          do: assert(frame!(state).previous_action == nil)
    end
  end

  describe "players" do
    test "may be at any two ports" do
      for {at, other} <- [{1, 4}, {4, 1}, {2, 3}, {3, 2}] do
        state = melee()
        moved = %{state | players: %{at => state.players[1], other => state.players[2]}}
        for state <- both(moved), do: assert(row(state, at) == row(melee(), 1))
      end
    end

    test "that are missing, or too many, are named" do
      state = melee()
      [one, two] = [state.players[1], state.players[2]]

      for {players, kind, text} <- [
            {%{2 => two, 3 => one}, :not_found, "player at port 1 (the game has ports 2, 3)"},
            {%{1 => one}, :not_found, "an opponent of port 1"},
            {%{1 => nil, 2 => two}, :not_found, "player at port 1"},
            {%{1 => one, 2 => nil}, :not_found, "player at port 2"},
            {%{1 => one, 2 => two, 3 => two}, :mismatch, "players of a game: expected 2, got 3"},
            {%{}, :not_found, "player at port 1"}
          ] do
        {:error, error} = Compat.Melee.frame(%{state | players: players}, 1)
        assert {error.kind, error.op} == {kind, :frame}
        assert Exception.message(error) =~ text
      end
    end

    test "without a field, or malformed, are an error that says so" do
      for state <- both(melee()) do
        without = fn name ->
          %{state | players: %{state.players | 1 => Map.delete(state.players[1], name)}}
        end

        for name <- [:percent, :facing, :action, :character, :on_ground, :stock] do
          {:error, error} = Compat.Melee.frame(without.(name), 1)
          assert error.kind == :not_found
          assert Exception.message(error) =~ inspect(name)
        end
      end

      for odd <- [%{position: nil}, %{nana: %{}}, %{nana: 1}, %{position: %{x: 1.0}}] do
        {:error, error} = Compat.Melee.frame(melee(odd), 1)
        assert error.kind in [:mismatch, :not_found]
        assert String.valid?(Exception.message(error))
      end

      for odd <- [[nil], [%{}], [%{owner: 1, type: 1, position: %{x: 1, y: 1}}]],
          do: assert({:error, %Error{}} = Compat.Melee.frame(melee(%{}, %{projectiles: odd}), 1))
    end
  end

  test "a malformed state is an error that names the part, of this module or of the row" do
    for {state, text} <- MeleeStates.malformed(7) do
      assert {:error, %Error{op: :frame} = error} =
               with({:ok, frame} <- Compat.Melee.frame(state, 1), do: Frame.pack(frame))

      assert Exception.message(error) =~ text
    end
  end

  test "a pad of ExPhil that was never filled is no input" do
    pad = %{
      __struct__: ExPhil.Bridge.ControllerState,
      main_stick: nil,
      c_stick: nil,
      button_a: nil
    }

    assert frame!(melee(%{controller_state: pad})).previous_action == nil
  end

  test "a state of another struct, and a term that is none, are refused" do
    for odd <- [
          %{melee() | __struct__: Some.GameState},
          %{},
          nil,
          7,
          "state",
          Map.delete(melee(), :__struct__)
        ] do
      refute Compat.Melee.recognised?(odd)
      assert {:error, %Error{kind: :mismatch, op: :frame}} = Compat.Melee.frame(odd, 1)
    end

    assert_raise ArgumentError, ~r/port: expected 1 to 4, got: 5/, fn ->
      Compat.Melee.frame(melee(), 5)
    end

    assert_raise ArgumentError, ~r/stage_ids/, fn ->
      Compat.Melee.frame(melee(), 1, stage_ids: :melee)
    end
  end

  test "the phase of a state follows its menu" do
    phases = %{
      0 => :menu,
      1 => :menu,
      2 => :game,
      3 => :game,
      4 => :postgame,
      5 => :menu,
      nil => :menu
    }

    for {menu, phase} <- phases,
        state <- both(melee(%{}, %{menu_state: menu})),
        do: assert(Compat.Melee.phase(state) == phase)
  end

  test "the bridge's own port goes before the given one, if it is a port" do
    state = MeleeStates.exphil(melee())
    assert Compat.Melee.port(%{state | own_port: 3}, 1) == 3
    for odd <- [nil, 0, 5], do: assert(Compat.Melee.port(%{state | own_port: odd}, 2) == 2)
    assert Compat.Melee.port(melee(), 2) == 2
  end

  describe "a controller input" do
    @input %{
      buttons: %{a: true, b: false, x: true, y: false, z: false, l: false, r: true, d_up: false},
      main_stick: %{x: 0.0625, y: 0.5},
      c_stick: %{x: 1.0, y: 0.25},
      shoulder: 0.75
    }

    test "has the shape of each library, without the library" do
      assert Compat.Melee.controller(@input, :libmelee) == %{
               button: @input.buttons,
               main_stick: {0.0625, 0.5},
               c_stick: {1.0, 0.25},
               l_shoulder: 0.75,
               r_shoulder: 0.0
             }

      assert Compat.Melee.controller(@input, :exphil) == %{
               main_stick: %{x: 0.0625, y: 0.5},
               c_stick: %{x: 1.0, y: 0.25},
               l_shoulder: 0.75,
               r_shoulder: 0.0,
               button_a: true,
               button_b: false,
               button_x: true,
               button_y: false,
               button_z: false,
               button_l: false,
               button_r: true,
               button_d_up: false
             }

      assert Compat.Melee.controller(@input, :bridge) == @input
    end

    test "of an action is that of its buttons and sticks, and reads back as the input that the game reports" do
      action = struct(%Action{choices: %{}}, @input)

      for shape <- [:libmelee, :exphil],
          do:
            assert(
              Compat.Melee.controller(action, shape) == Compat.Melee.controller(@input, shape)
            )

      for shape <- [:libmelee, :exphil],
          do:
            assert(
              Compat.Melee.observed(%{controller_state: Compat.Melee.controller(@input, shape)}) ==
                @input
            )

      assert Compat.Melee.observed(%{controller_state: nil}) == nil
      assert Compat.Melee.observed(%{}) == nil
    end

    test "that is none, or a shape that is none, raises" do
      assert_raise ArgumentError, ~r/input/, fn -> Compat.Melee.controller(%{}, :libmelee) end

      assert_raise ArgumentError, ~r/input/, fn ->
        Compat.Melee.controller(%Action{}, :libmelee)
      end

      assert_raise ArgumentError, ~r/did you mean :libmelee/, fn ->
        Compat.Melee.controller(@input, :libmele)
      end
    end
  end

  if replays = System.get_env("SCONCE_REPLAYS") do
    @tag timeout: 300_000
    test "frames of a real game's states equal the rows of its corpus" do
      path = Path.join(unquote(replays), "validation/fox_multishine_closed.slp")

      {:ok, corpus} =
        Sconce.Corpus.import(path,
          into: Path.join(Sconce.Test.Scratch.tmp_dir!("melee"), "corpus"),
          min_frames: 1,
          progress: false
        )

      {:ok, recording} = Sconce.Corpus.recording(corpus, 0, 0)

      for {row, _labels} <- recording do
        state = MeleeStates.of_row(row)

        for state <- [state, MeleeStates.exphil(state)],
            do: assert({:ok, row} == state |> frame!() |> Frame.pack())
      end
    end
  end
end
