defmodule Sconce.FrameTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, Frame, Native}
  alias Sconce.Frame.Player

  doctest Frame

  @own %Player{
    percent: 12.5,
    facing: -1,
    x: -20.0,
    y: 4.0,
    action: 14,
    character: 1,
    on_ground: true,
    stock: 4
  }
  @opponent %{
    @own
    | percent: 80,
      facing: 1,
      x: 30,
      action: 398,
      character: 32,
      shield_strength: 1
  }
  @action %{
    buttons: %{a: true, d_up: true},
    main_stick: %{x: 0.25, y: 0.5},
    c_stick: %{x: 0.5, y: 1.0},
    shoulder: 0.75
  }
  @frame %Frame{
    own: @own,
    opponent: @opponent,
    stage: 31,
    frame: 600,
    previous_action: @action,
    projectiles: [%{owner: :opponent, type: 50, x: 1.0, y: 2.0, speed_x: -3.0}]
  }

  defp row!(frame) do
    {:ok, row} = Frame.pack(frame)
    Map.new(Enum.zip(Frame.columns(), for(<<v::float-32-little <- row>>, do: v)))
  end

  defp error!(frame) do
    assert {:error, %Error{op: :frame} = error} = Frame.pack(frame)
    error
  end

  # The same term with strings as keys, at each depth.
  defp stringify(%_{} = struct), do: struct |> Map.from_struct() |> stringify()
  defp stringify(%{} = map), do: Map.new(map, fn {k, v} -> {to_string(k), stringify(v)} end)
  defp stringify(list) when is_list(list), do: Enum.map(list, &stringify/1)
  defp stringify(value), do: value

  test "the columns are those of the native row, in order" do
    assert {:ok, Frame.columns()} == Native.frame_columns()
  end

  test "each value is in the column of its name" do
    row = row!(@frame)

    assert %{"own.percent" => 12.5, "own.facing" => -1.0, "own.x" => -20.0} = row
    assert %{"opponent.percent" => 80.0, "opponent.action" => 398.0} = row
    assert %{"own.on_ground" => 1.0, "own.invulnerable" => +0.0, "stage" => 31.0} = row
    assert %{"frame" => 600.0, "name_id" => +0.0, "prev_exists" => 1.0} = row
    assert %{"prev_buttons.a" => 1.0, "prev_buttons.b" => +0.0, "prev_buttons.d_up" => 1.0} = row
    assert %{"prev_main_x" => 0.25, "prev_c_y" => 1.0, "prev_shoulder" => 0.75} = row
    assert %{"projectile_count" => 1.0, "projectile_0.owner" => 2.0} = row
    assert %{"projectile_0.type" => 50.0, "projectile_0.speed_x" => -3.0} = row
    assert %{"projectile_0.speed_y" => +0.0, "projectile_1.x" => +0.0} = row
  end

  test "a map with atoms or strings as keys is the same frame" do
    {:ok, row} = Frame.pack(@frame)

    assert Frame.pack(Map.from_struct(@frame)) == {:ok, row}
    assert Frame.pack(stringify(@frame)) == {:ok, row}
  end

  test "fields that are missing or nil get their defaults" do
    required = ~w(percent facing x y action character on_ground stock)a
    own = Map.take(@own, required)
    row = row!(%{own: own, opponent: Map.put(own, :shield_strength, nil), stage: 2})

    assert %{"own.shield_strength" => 60.0, "opponent.shield_strength" => 60.0} = row
    assert %{"own.jumps_left" => 2.0, "own.nana_exists" => +0.0, "distance" => +0.0} = row
    assert %{"prev_exists" => +0.0, "prev_main_x" => +0.0, "projectile_count" => +0.0} = row
  end

  test "a packed row is used unchanged, and only at its own size" do
    {:ok, row} = Frame.pack(@frame)

    assert Frame.pack(row) == {:ok, row}
    error = error!(binary_part(row, 0, 100))
    assert error.kind == :mismatch
    assert Exception.message(error) == "frame: frame: expected 396 bytes, got 100 bytes"
  end

  test "a missing player or required field is named" do
    assert %{kind: :not_found, details: %{what: "own"}} = error!(%{@frame | own: nil})

    assert %{kind: :not_found, details: %{what: "opponent"}} =
             error!(Map.delete(Map.from_struct(@frame), :opponent))

    assert %{kind: :not_found, details: %{what: "stage"}} = error!(%{@frame | stage: nil})

    assert %{kind: :not_found, details: %{what: "opponent.action"}} =
             error!(%{@frame | opponent: Map.delete(stringify(@opponent), "action")})

    assert %{kind: :not_found, details: %{what: "previous_action.c_stick"}} =
             error!(%{@frame | previous_action: Map.delete(@action, :c_stick)})

    assert %{kind: :not_found, details: %{what: "projectile_0.x"}} =
             error!(%{@frame | projectiles: [%{owner: 1}]})
  end

  test "a value that is not a number is named" do
    own = fn value -> error!(%{@frame | own: %{@own | x: value}}) end

    assert %{kind: :non_finite, details: %{what: "own.x", value: :nan}} = own.(:nan)
    assert %{kind: :non_finite, details: %{value: :infinity}} = own.(:infinity)
    assert %{kind: :mismatch, details: %{what: "own.x", got: "\"left\""}} = own.("left")
    assert %{kind: :out_of_range, details: %{field: "own.x", value: 1.0e300}} = own.(1.0e300)
    assert %{kind: :out_of_range} = own.(Integer.pow(10, 400))
    assert Exception.message(own.(:nan)) == "frame: own.x is not finite (nan)"
  end

  test "a field that should be a map or a list is named" do
    assert %{kind: :mismatch, details: %{what: "own"}} = error!(%{@frame | own: 3})

    assert %{kind: :mismatch, details: %{what: "projectiles"}} =
             error!(%{@frame | projectiles: 3})

    assert %{kind: :mismatch, details: %{what: "projectile_1"}} =
             error!(%{@frame | projectiles: [%{owner: 0, x: 1, y: 2}, nil]})

    assert %{kind: :mismatch, details: %{what: "projectile_0.owner"}} =
             error!(%{@frame | projectiles: [%{owner: :me, x: 1, y: 2}]})

    assert %{kind: :mismatch, details: %{what: "previous_action"}} =
             error!(%{@frame | previous_action: :none})

    assert %{kind: :mismatch, details: %{what: "frame"}} = error!(nil)
  end

  test "facing as a boolean means right or left" do
    own = %{@own | facing: false, nana_facing: true}
    assert %{"own.facing" => -1.0, "own.nana_facing" => 1.0} = row!(%{@frame | own: own})
  end

  test "the count includes projectiles beyond the slots of the row" do
    projectiles = for i <- 1..7, do: %{owner: :own, x: i, y: 0}
    row = row!(%{@frame | projectiles: projectiles})
    assert %{"projectile_count" => 7.0, "projectile_4.x" => 5.0} = row
  end

  test "a packed frame comes back whole, with its previous action and its projectiles" do
    player = %Frame.Player{
      percent: 12.5,
      facing: -1,
      x: -20.25,
      y: 3.5,
      action: 14,
      character: 1,
      on_ground: true,
      stock: 4
    }

    action = %{
      buttons: %{a: true, x: true},
      main_stick: %{x: 0.25, y: 1.0},
      c_stick: %{x: 0.5, y: 0.5},
      shoulder: 0.75
    }

    projectile = %{owner: :opponent, type: 54, x: 1.5, y: -2.0, speed_x: 0.5}
    frame = %Frame{own: player, opponent: %{player | x: 8.0, on_ground: false}, stage: 31}
    frame = %{frame | frame: -39, previous_action: action, projectiles: [projectile, projectile]}
    {:ok, row} = Frame.pack(frame)
    {:ok, found} = Frame.unpack(row)
    assert Frame.pack(found) == {:ok, row}
    assert {found.frame, found.stage, found.own.on_ground} == {-39, 31, true}
    assert {found.opponent.x, found.opponent.on_ground} == {8.0, false}
    assert %{a: true, b: false, x: true, y: false} = found.previous_action.buttons
    assert found.previous_action.main_stick == %{x: 0.25, y: 1.0}
    assert [%{owner: 2, type: 54, x: 1.5, y: -2.0}, _second] = found.projectiles
    nan = <<0x7FC00000::32-little, binary_part(row, 4, byte_size(row) - 4)::binary>>
    assert {:error, %Error{kind: :mismatch}} = Frame.unpack(nan)
  end
end
