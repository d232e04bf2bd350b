defmodule Sconce.Bench.StressTest do
  use ExUnit.Case, async: false

  alias Sconce.Bench.{Histogram, Stress}

  doctest Histogram

  test "every call comes back with what it may, whatever happens, and nothing is left" do
    report = Stress.run(seconds: 3.0, callers: 24)
    assert report.crashed == []
    assert report.hung == []

    # What was to happen did.
    for event <- [:kill, :panic, :slow, :swap], do: assert(report.events[event] > 0)
    answers = Map.new(report.outcomes)
    for kind <- [:ok, :busy, :deadline], do: assert(answers[{:near, :act, kind}] > 0)
    for call <- [:forward, :snapshot, :reset, :close], do: assert(answers[{:near, call, :ok}] > 0)
    assert report.late.near.count > 0 and report.control.count > 0

    for kind <- [:processes, :sessions, :threads] do
      assert Map.fetch!(report.after, kind) <= Map.fetch!(report.before, kind)
    end
  end
end
