defmodule Sconce.ActionTest do
  use ExUnit.Case, async: true

  alias Sconce.{Action, Error, Frame}
  alias Sconce.Policy.Spec

  doctest Action

  @labels [1, 0, 0, 0, 0, 0, 1, 0, 16, 8, 0, 4, 3]
  @confidence [0.9, 0.5, 0.7, 0.4, 0.6, 0.8]

  defp controller(logits \\ nil),
    do: Action.new(Spec.new(), true, {@labels, @confidence, logits, 3})

  test "a controller's choices become buttons, sticks and shoulder" do
    action = controller()

    assert action.buttons ==
             %{a: true, b: false, x: false, y: false, z: false, l: false, r: true, d_up: false}

    assert action.main_stick == %{x: 1.0, y: 0.5}
    assert action.c_stick == %{x: 0.0, y: 0.25}
    assert action.shoulder == 0.75
    assert action.choices.buttons == [1, 0, 0, 0, 0, 0, 1, 0]
    assert action.choices.main_x == 16
    assert {action.frame, action.logits} == {3, nil}
  end

  test "the confidence of a controller weights its four parts, to three decimals" do
    assert controller().confidence ==
             %{buttons: 0.9, main: 0.6, c: 0.5, shoulder: 0.8, overall: 0.735}
  end

  test "logits are grouped by head" do
    logits = for i <- 1..81, into: <<>>, do: <<i::float-32-little>>
    by_head = controller(logits).logits

    assert by_head.buttons == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert hd(by_head.main_x) == 9.0
    assert by_head.shoulder == [77.0, 78.0, 79.0, 80.0, 81.0]
  end

  test "other heads have choices and a confidence each" do
    spec =
      Spec.new(embedding: {:vector, 2}, heads: [go: {:bernoulli, 2}, turn: {:categorical, 4}])

    action = Action.new(spec, false, {[1, 0, 3], [0.12345, 0.5], nil, 1})

    assert action.choices == %{go: [1, 0], turn: 3}
    assert action.confidence == %{go: 0.123, turn: 0.5}
    assert {action.buttons, action.main_stick, action.shoulder} == {nil, nil, nil}
  end

  test "an action returns its labels, and serves as a frame's previous action" do
    assert Action.labels(Spec.new(), :previous, controller()) == {:ok, @labels}

    assert Action.labels(Spec.new(), :previous, Keyword.new(controller().choices)) ==
             {:ok, @labels}

    player = %{percent: 0, facing: 1, x: 0, y: 0, action: 14, character: 1}
    player = Map.merge(player, %{on_ground: true, stock: 4})
    frame = %{own: player, opponent: player, stage: 31, previous_action: controller()}
    {:ok, row} = Frame.pack(frame)
    at = 4 * Enum.find_index(Frame.columns(), &(&1 == "prev_exists"))
    numbers = for <<v::float-32-little <- binary_part(row, at, 56)>>, do: v
    assert numbers == [1, 1, 0, 0, 0, 0, 0, 1, 0, 1.0, 0.5, 0.0, 0.25, 0.75]
  end

  test "choices that do not fit the heads are refused" do
    spec =
      Spec.new(embedding: {:vector, 2}, heads: [go: {:bernoulli, 2}, turn: {:categorical, 4}])

    for bad <- [
          %{go: [1, 0]},
          %{go: [1, 0], turn: 1, jump: 0},
          %{go: [1, :a], turn: 0},
          3,
          [1, :a]
        ] do
      assert {:error, %Error{kind: :mismatch, op: :act}} = Action.labels(spec, :previous, bad)
    end
  end
end
