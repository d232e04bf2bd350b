defmodule Sconce.Rollout.CourierTest do
  use ExUnit.Case, async: true

  alias Sconce.{Native, Policy, Pressure, Rollout, Serving, Session}
  alias Sconce.Policy.Spec
  alias Sconce.Rollout.{Courier, Window}

  defmodule Learner do
    @moduledoc "A learner that takes `take` segments of a message, and dies at message number `dies_at`."
    use GenServer

    @impl true
    def init(state), do: {:ok, Map.merge(%{expected: nil, messages: 0, dies_at: nil}, state)}

    @impl true
    def handle_call({:weights, _known}, _from, state), do: {:reply, :known, state}

    def handle_call({:segments, _sender, _base, _first, _segments}, _from, %{
          messages: n,
          dies_at: n
        }),
        do: exit(:kill)

    def handle_call({:segments, _sender, base, first, segments}, _from, state) do
      {new, number} = Window.received(state.expected, base, first, segments)
      taken = Enum.take(new, state.take)
      send(state.test, {:message, segments})
      for segment <- taken, do: send(state.test, {:taken, segment})
      expected = number + length(taken)
      {:reply, {:next, expected}, %{state | expected: expected, messages: state.messages + 1}}
    end
  end

  @spec_options [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], value_head: true] ++
                  [heads: [go: {:bernoulli, 1}]]

  setup_all do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    serving = start_supervised!({Serving, policy: policy})
    rollout = start_supervised!({Rollout, serving: serving})
    {:ok, session} = Rollout.open(rollout, steps: 2)

    for step <- 1..60 do
      {:ok, _action} = Session.act(session, [step / 60, 0.2])
      if rem(step, 3) == 0, do: :ok = Rollout.done(session, :terminated)
    end

    {:ok, %{inbox: inbox}} = Rollout.source(rollout)
    {:ok, segments} = Native.inbox_take(inbox, 1_000)
    assert length(segments) == 40
    %{policy: policy, segments: segments}
  end

  # Segments that arrive at learners, one after the other, by a courier with these options.
  defp carry(context, learners, opts) do
    {:ok, inbox} = Native.inbox_new(Spec.to_native(context.policy.spec), ["reward"], 65_536)
    {:ok, 40} = Native.inbox_offer(inbox, context.segments)
    name = :"learner-#{System.unique_integer([:positive])}"
    retry = %{{:deadline, :network} => [retry: [times: :infinity, backoff_ms: 1, most_ms: 1]]}
    pressure = Pressure.new(:network, rows: retry)
    options = [poll_ms: 1, pressure: pressure, in_flight: 3] ++ opts
    courier = Courier.start_link(inbox, name, options, :counters.new(1, []))

    for learner <- learners do
      {:ok, pid} = GenServer.start(Learner, Map.put(learner, :test, self()), name: name)
      monitor = Process.monitor(pid)
      if learner[:dies_at], do: assert_receive({:DOWN, ^monitor, _, _, _}, 30_000)
    end

    taken =
      for _ <- 1..40,
          do: receive(do: ({:taken, segment} -> segment), after: (30_000 -> flunk("lost")))

    Process.unlink(courier)
    Process.exit(courier, :kill)
    taken
  end

  defp messages(sizes \\ []) do
    receive do
      {:message, segments} -> messages([length(segments) | sizes])
    after
      0 -> Enum.reverse(sizes)
    end
  end

  test "segments go in few messages, in order", %{segments: segments} = context do
    assert carry(context, [%{take: 100}], batch_bytes: 1_048_576) == segments
    assert messages() == [40]
    assert carry(context, [%{take: 100}], batch_bytes: 1) == segments
    assert messages() == List.duplicate(1, 40)
  end

  test "a learner whose queue is full gets the rest again, in order", context do
    bytes = 4 * byte_size(hd(context.segments))
    assert carry(context, [%{take: 1}], batch_bytes: bytes) == context.segments
  end

  test "a learner that never answers ends the courier if the table says so", context do
    Process.flag(:trap_exit, true)
    {:ok, inbox} = Native.inbox_new(Spec.to_native(context.policy.spec), ["reward"], 65_536)
    test = self()
    own = [rows: %{{:deadline, :network} => [:stop]}, progress: &send(test, {:told, &1})]
    options = [poll_ms: 1, batch_bytes: 1, in_flight: 1, pressure: Pressure.new(:network, own)]
    courier = Courier.start_link(inbox, :no_such_learner, options, :counters.new(1, []))
    assert_receive {:EXIT, ^courier, {:shutdown, %Sconce.Error{kind: :deadline}}}, 30_000
    assert_received {:told, %{failed: :deadline, where: :network, decision: :stop}}
  end

  test "a learner that dies loses what it had, and nothing else is lost", context do
    bytes = 4 * byte_size(hd(context.segments))
    learners = [%{take: 100, dies_at: 2}, %{take: 100, dies_at: 1}, %{take: 100}]
    assert carry(context, learners, batch_bytes: bytes) == context.segments
  end
end
