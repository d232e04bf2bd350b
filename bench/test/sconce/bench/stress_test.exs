defmodule Sconce.Bench.StressTest do
  use ExUnit.Case, async: false

  # The test takes long on a loaded machine.
  @moduletag timeout: 300_000

  alias Sconce.Bench.{Child, Histogram, Stress}

  doctest Histogram
  doctest Child

  @left [:processes, :sessions, :threads, :descriptors, :atoms]

  test "every call returns an allowed answer under all failures, and nothing is left" do
    report = Stress.run(seconds: 4.0, callers: 24, runs: true)
    assert report.crashed == []
    assert report.hung == []

    # All planned events happened.
    for event <- [:kill, :kill_in_call, :panic, :slow, :swap, :stray],
        do: assert(report.events[event] > 0)

    answers = Map.new(report.outcomes)
    for kind <- [:ok, :busy, :deadline], do: assert(answers[{:near, :act, kind}] > 0)
    for call <- [:forward, :snapshot, :reset, :close], do: assert(answers[{:near, call, :ok}] > 0)
    assert answers[{:near, :train, :ok}] + answers[{:near, :train, :cancelled}] > 0
    assert report.late.near.count > 0 and report.control.count > 0
    assert for(field <- @left, field in report.left, do: field) == []
  end

  test "a suspended node blocks no call, and none of its sessions is left" do
    alive? = Node.alive?()
    report = Stress.run(seconds: 8.0, callers: 12, far: true)
    unless alive?, do: Node.stop()
    assert report.crashed == []
    assert report.hung == []
    assert report.events.still_node > 0
    assert report.far_sessions in [nil, 0]
    assert for(field <- @left, field in report.left, do: field) == []
  end
end
