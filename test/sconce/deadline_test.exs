defmodule Sconce.DeadlineTest do
  use ExUnit.Case, async: true

  alias Sconce.{Deadline, Error}

  defp ago(ms),
    do: System.monotonic_time() - System.convert_time_unit(ms, :millisecond, :native)

  test "the rest of a deadline is never longer than the deadline and never below 0" do
    assert Deadline.left(60_000, ago(0)) in 1..60_000
    assert Deadline.timeout(60_000, ago(50_000)) in 0..10_000
    assert {Deadline.left(10, ago(20)), Deadline.timeout(10, ago(20))} == {0, 0}
  end

  test "a part of a call without a deadline has none, and waits forever" do
    assert {Deadline.left(nil, ago(20)), Deadline.timeout(nil, ago(20))} == {nil, :infinity}
  end

  test "the error of a late part carries the deadline of the whole call" do
    late = {:error, Error.late(:act, 3, ago(1))}

    assert {:error, %Error{kind: :deadline, op: :act} = error} =
             Deadline.of_call(late, 50, ago(60))

    assert error.details.deadline_ms == 50
    assert error.details.waited_ms >= 60
  end

  test "any other answer stays unchanged" do
    late = {:error, Error.late(:act, 3, ago(1))}
    busy = {:error, %Error{kind: :busy, op: :act}}

    for {answer, ms} <- [{late, nil}, {busy, 50}, {{:ok, 1}, 50}, {:ok, 50}],
        do: assert(Deadline.of_call(answer, ms, ago(60)) == answer)
  end
end
