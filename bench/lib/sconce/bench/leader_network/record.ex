defmodule Sconce.Bench.LeaderNetwork.Record do
  @moduledoc false
  # Runs on the VM of a member: its events, and the spans in which it led and its child ran, by the clock of the machine.
  #
  # A span has the times of the question before the first positive answer (`from`), of the first and the last positive
  # answer (`first`, `last`), and of the negative answer after it (`until`).

  alias Sconce.Bench.Leader

  defmodule Child do
    @moduledoc false
    use GenServer

    def start_link(_arg), do: GenServer.start_link(__MODULE__, nil, name: __MODULE__)

    @impl true
    def init(nil), do: {:ok, nil}
  end

  @doc "A clock that all processes of the machine share, in microseconds."
  @spec clock() :: float
  def clock, do: :os.perf_counter(:nanosecond) / 1000

  @spec start(atom, keyword) :: :ok
  def start(name, member) do
    caller = self()

    spawn(fn ->
      Process.register(self(), __MODULE__)
      Leader.start_member(member)
      :ok = Sconce.Leader.subscribe(name)
      send(caller, {:recording, self()})
      now = clock()
      spans = %{value: nil, span: nil, done: [], asked: now}
      record(%{name: name, events: [], leads: spans, children: spans})
    end)

    receive do: ({:recording, _pid} -> :ok)
  end

  @doc "Stops the member, and returns its events and spans."
  @spec stop(atom) :: map
  def stop(name) do
    Leader.stop_member(name)
    ref = Process.monitor(__MODULE__)
    send(__MODULE__, {:finish, self()})

    receive do
      {:record, record} ->
        receive do: ({:DOWN, ^ref, :process, _pid, _reason} -> record)
    end
  end

  defp record(state) do
    receive do
      {:sconce_leader, _name, event} ->
        record(%{state | events: [{clock(), event} | state.events]})

      {:finish, caller} ->
        state = sampled(state)
        finished = Map.new([:leads, :children], &{&1, Map.fetch!(state, &1).done})
        send(caller, {:record, Map.put(finished, :events, Enum.reverse(state.events))})
    after
      1 -> state |> sampled() |> record()
    end
  end

  defp sampled(state) do
    leads =
      answered(state.leads, fn ->
        with {:ok, term} <- Sconce.Leader.term(state.name), do: {:yes, term}
      end)

    children =
      answered(state.children, fn ->
        with pid when is_pid(pid) <- Process.whereis(Child), do: {:yes, pid}
      end)

    %{state | leads: leads, children: children}
  end

  defp answered(spans, question) do
    asked = clock()
    answer = question.()
    at = clock()

    case {answer, spans.span} do
      {{:yes, value}, %{value: value} = span} ->
        %{spans | span: %{span | last: asked}, asked: asked}

      {{:yes, value}, before} ->
        span = %{value: value, from: spans.asked, first: at, last: at, until: nil}
        %{closed(spans, before, at) | span: span, asked: asked}

      {_no, before} ->
        %{closed(spans, before, at) | span: nil, asked: asked}
    end
  end

  defp closed(spans, nil, _at), do: spans
  defp closed(spans, span, at), do: %{spans | done: [%{span | until: at} | spans.done]}
end
