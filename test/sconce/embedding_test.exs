defmodule Sconce.EmbeddingTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  alias Sconce.{Embedding, Error, Frame, Native}

  doctest Embedding

  @own %{
    percent: 50,
    facing: true,
    x: -40.0,
    y: 10.0,
    action: 14,
    character: 1,
    on_ground: true,
    stock: 2
  }
  @opponent %{@own | percent: 900, facing: false, x: 60.0, action: 398, character: 32}
  @frame %Frame{
    own: @own,
    opponent: @opponent,
    stage: 31,
    frame: 7200,
    previous_action: %{
      buttons: %{b: true},
      main_stick: %{x: 1.0, y: 0.5},
      c_stick: %{x: 0.5, y: 0.25},
      shoulder: 0.5
    },
    projectiles: [%{owner: :own, type: 20, x: 20, y: -10, speed_x: 1}]
  }

  defp features!(embedding, frame) do
    {:ok, schema} = Embedding.schema(embedding)
    {:ok, {continuous, ids}} = Embedding.embed(embedding, frame)
    values = for <<v::float-32-little <- continuous>>, do: Float.round(v * 1.0, 5)

    by_name =
      for %{name: name, offset: offset, width: 1} <- schema,
          offset < length(values),
          into: %{},
          do: {name, Enum.at(values, offset)}

    {by_name, ids, values}
  end

  # A raw row whose column `name` holds these four bytes.
  defp with_bytes(name, bytes) do
    {:ok, row} = Frame.pack(@frame)
    at = 4 * Enum.find_index(Frame.columns(), &(&1 == name))
    binary_part(row, 0, at) <> bytes <> binary_part(row, at + 4, byte_size(row) - at - 4)
  end

  test "a frame becomes ids and the features that the schema names" do
    {features, ids, values} = features!(:melee, @frame)

    assert ids == [14, 398, 1, 32, 4]
    assert length(values) == 164
    assert %{"own.percent" => 0.5, "opponent.percent" => 5.0} = features
    assert %{"own.facing" => 1.0, "opponent.facing" => -1.0} = features
    assert %{"own.x" => -2.0, "own.shield_strength" => 0.6, "own.stock" => 0.5} = features
    assert %{"own.ledge_distance" => 0.52941, "distance" => 0.5} = features
    assert %{"relative_x" => 0.5, "relative_y" => +0.0, "frame" => 0.25} = features
    assert %{"prev_buttons.b" => 1.0, "prev_main_x" => 1.0, "prev_c_y" => -0.5} = features
    assert %{"projectile_0.exists" => 1.0, "projectile_0.owner" => 0.5} = features
    assert %{"projectile_0.x" => 1.0, "projectile_1.exists" => +0.0} = features
  end

  test "the packed vector has 288 numbers, its ids among them" do
    {features, ids, values} = features!({:melee, layout: :packed}, @frame)

    assert {ids, length(values)} == {[], 288}
    assert %{"own.action" => 14.0, "opponent.character" => 32.0, "pad" => +0.0} = features
  end

  test "a queue and a delay id follow the previous action, and are zeros for a single frame" do
    packed = {:melee, layout: :packed, queue_depth: 4, num_delays: 9}
    {:ok, schema} = Embedding.schema(packed)
    {plain, [], _values} = features!({:melee, layout: :packed}, @frame)
    {features, [], values} = features!(packed, @frame)
    assert length(values) == 336
    at = for %{name: name} = feature <- schema, into: %{}, do: {name, feature}
    shoulder = at["prev_shoulder"].offset
    assert %{offset: queue, width: 39} = at["queue"]
    assert %{offset: delay, width: 9} = at["delay_id"]
    assert {queue, delay} == {shoulder + 1, shoulder + 40}
    assert Enum.slice(values, queue, 48) == List.duplicate(0.0, 48)
    assert Map.drop(features, ["queue", "delay_id"]) == plain
    # Options with default values make the same embedding.
    assert Embedding.new!({:melee, layout: :packed, queue_depth: 1, num_delays: 0}) ==
             {:melee, [layout: :packed]}
  end

  test "the schema covers the whole vector" do
    for embedding <- [:melee, {:melee, num_player_names: 9, num_projectiles: 1}, {:vector, 5}] do
      {:ok, schema} = Embedding.schema(embedding)
      ends = Enum.map(schema, &(&1.offset + &1.width))
      assert Enum.map(schema, & &1.offset) == [0 | Enum.drop(ends, -1)]
    end
  end

  test "the schema prints as a table" do
    assert capture_io(fn -> :ok = Embedding.print_schema({:vector, 4}) end) == """
           offset  width  name    formula
                0      4  vector  as given
           """

    {:ok, schema} = Embedding.schema(:melee)
    lines = capture_io(fn -> Embedding.print_schema(:melee) end) |> String.split("\n", trim: true)
    assert length(lines) == 1 + length(schema)
    assert Enum.any?(lines, &(&1 =~ ~r/^ +2 +1  own\.x +x \/ 20, clamp -10\.\.10$/))
  end

  test "a NaN in a packed frame is named" do
    row = with_bytes("opponent.speed_y_self", <<0, 0, 192, 127>>)
    assert {:error, %Error{kind: :non_finite} = error} = Embedding.embed(:melee, row)
    assert Exception.message(error) == "embed: opponent.speed_y_self is not finite (NaN)"
  end

  test "an id out of range is named with its value" do
    frame = %{@frame | own: %{@own | action: 5000}}
    assert {:error, %Error{kind: :out_of_range} = error} = Embedding.embed(:melee, frame)
    assert %{field: "own.action", value: 5000.0, min: +0.0, max: 398.0} = error.details
    assert Exception.message(error) == "embed: own.action: 5000 is outside 0..398"
  end

  test "a stick outside 0..1 is named" do
    frame = put_in(@frame.previous_action.main_stick.x, -1.0)
    assert {:error, %Error{kind: :out_of_range} = error} = Embedding.embed(:melee, frame)
    assert %{field: "prev_main_x", value: -1.0} = error.details
  end

  test "a binary of another size is refused, also by the native side" do
    assert {:error, %Error{kind: :mismatch}} = Embedding.embed(:melee, <<1, 2, 3>>)
    assert {:error, error} = Native.embed(%{vector: 2}, <<1, 2, 3>>)

    assert %Error{kind: :mismatch, details: %{expected: "8 bytes", got: "3 bytes"}} = error
  end

  test "a vector takes numbers or their binary" do
    assert {:ok, {<<0.5::float-32-little, 2.0::float-32-little>> = row, []}} =
             Embedding.embed({:vector, 2}, [0.5, 2])

    assert Embedding.embed({:vector, 2}, row) == {:ok, {row, []}}

    for bad <- [[1.0], [1.0 | 2.0], [1.0, :nan], "abc", nil] do
      assert {:error, %Error{kind: :mismatch, op: :frame}} = Embedding.embed({:vector, 2}, bad)
    end

    assert {:error, %Error{kind: :non_finite, details: %{what: "vector[1]"}}} =
             Embedding.embed({:vector, 2}, [1.0, 1.0e300])
  end

  test "an embedding returns unchanged from the native side" do
    past = [queue_depth: 4, num_delays: 9]

    for given <- [
          {:vector, 3},
          :melee,
          {:melee, num_projectiles: 0},
          {:melee, past},
          {:melee, layout: :packed},
          {:melee, [layout: :packed] ++ past},
          {:melee, layout: :packed, num_delays: 19}
        ] do
      embedding = Embedding.new!(given)
      assert Embedding.new!(embedding) == embedding

      {:ok, native} = embedding |> Embedding.to_native() |> Native.probe_echo()
      assert Embedding.from_native(native) == embedding
    end
  end

  test "wrong options are refused by name" do
    for {embedding, sentence} <- [
          {{:melee, layout: :one_hot}, ~r/:layout/},
          {{:melee, num_projectiles: 6}, ~r/:num_projectiles/},
          {{:melee, layout: :packed, num_projectiles: 3}, ~r/packed.*:num_projectiles/},
          {{:melee, queue_depth: 0}, ~r/:queue_depth: expected one of 1..64, got: 0/},
          {{:melee, layout: :packed, queue_depth: 65}, ~r/:queue_depth.*got: 65/},
          {{:melee, num_delays: -1}, ~r/:num_delays.*got: -1/},
          {{:vector, 0}, ~r/:vector/},
          {:chess, ~r/:chess/}
        ] do
      assert_raise ArgumentError, sentence, fn -> Embedding.new!(embedding) end
    end
  end
end
